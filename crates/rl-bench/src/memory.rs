//! Decisions in this process: six periods of ours beside one and six limiters of governor.

use std::error::Error;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use fastrand::Rng;
use governor::{DefaultKeyedRateLimiter, Quota};
use rl_core::store::MemoryStore;
use rl_core::{Eventual, Limit, Period, RateLimiter, Subject};
use stats_alloc::Region;

use crate::machine;
use crate::measure::{Comparison, compare, time};
use crate::table::Table;

/// Keys of the measurements out of cache.
const MANY: usize = 1_000_000;
/// Decisions of a block on one key.
const HOT_BLOCK: usize = 100_000;
/// Decisions of a block on many keys: the caches have forgotten a key when it comes again.
const COLD_BLOCK: usize = MANY / 4;
/// More than is ever asked for, and the most that governor takes in a second.
const ENDLESS: u32 = 1_000_000_000;

pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    println!("rl-core in memory: six periods, second to month, in each decision\n");
    println!("machine   {}", machine::cores());
    println!(
        "versions  {}, {}, {}, {}",
        machine::library("rl-core"),
        machine::library("governor"),
        machine::program("rustc"),
        machine::profile()
    );
    println!(
        "measured  one thread, no runtime, blocks in the order ours, theirs, theirs, ours; ns for \
         each decision are\n          medians, a ratio is the median over rounds with its \
         bootstrap interval of 95 %;\n          above 1x we are faster; keys are built beforehand \
         on both sides\n"
    );
    let keys = Keys::new(MANY);
    let mut speed = Table::new("speed", ["case", "ours ns", "theirs ns", "ours is faster by"]);
    on_one_key(&keys, &mut speed)?;
    let mut space = Table::new(
        "memory (bytes asked of the allocator by a million keys)",
        ["contender", "bytes for each key"],
    );
    let warm = on_many_keys(&keys, &mut speed, &mut space)?;
    println!("{speed}\n{space}\n{}\n{}", allocations(&warm, &keys)?, exactness(&keys)?);
    Ok(())
}

/// Everybody who is asked for, under a number.
struct Keys {
    subjects: Vec<Subject>,
    names: Vec<String>,
    /// All numbers, in random order.
    order: Vec<u32>,
}

impl Keys {
    fn new(count: usize) -> Self {
        let name = |n: u32| format!("consumer-{n:08}");
        let mut order: Vec<u32> = (0..).take(count).collect();
        let names: Vec<String> = order.iter().map(|n| name(*n)).collect();
        let subjects = names.iter().map(|name| Subject::consumer(name)).collect();
        Rng::with_seed(1).shuffle(&mut order);
        Self { subjects, names, order }
    }

    /// The n-th slice of the random order; it goes around.
    fn slice(&self, n: usize) -> &[u32] {
        let slices = self.order.len() / COLD_BLOCK;
        &self.order[n % slices * COLD_BLOCK..][..COLD_BLOCK]
    }
}

/// What decides whether a key passes.
trait Contender: Sync {
    fn admits(&self, keys: &Keys, key: u32) -> bool;

    /// How many of `visits` pass. Called once for a block, so that the calls in it are direct.
    fn admitted(&self, keys: &Keys, visits: &[u32]) -> usize {
        visits.iter().filter(|key| self.admits(keys, **key)).count()
    }
}

/// Nanoseconds for each of `visits`, which all pass or all do not.
fn block(contender: &dyn Contender, keys: &Keys, visits: &[u32], passes: bool) -> f64 {
    let (elapsed, admitted) = time(|| contender.admitted(keys, visits));
    assert_eq!(admitted, if passes { visits.len() } else { 0 }, "the limits are set so");
    elapsed.as_secs_f64() * 1e9 / visits.len() as f64
}

/// All six periods in one limiter.
struct Ours(RateLimiter);

impl Ours {
    /// `max` gives for each period how much passes.
    fn new(max: [u32; 6]) -> Result<Self, Box<dyn Error>> {
        // Twice the room: by chance some of the store's parts hold more keys than others.
        let store = MemoryStore::builder().capacity(2 * MANY).build();
        let mut limiter = RateLimiter::builder().store(store);
        for (max, period) in max.into_iter().zip(Period::NAMED) {
            limiter = limiter.limit(Limit::new(max.into(), period)?);
        }
        Ok(Self(limiter.build()?))
    }
}

impl Contender for Ours {
    fn admits(&self, keys: &Keys, key: u32) -> bool {
        match self.0.check(&keys.subjects[key as usize], 1) {
            Eventual::Ready(Some(decision)) => black_box(&decision).is_allowed(),
            _ => unreachable!("decisions in memory are there at once"),
        }
    }
}

/// One or more of governor's limiters, asked one after the other until one denies.
struct Governors(Vec<DefaultKeyedRateLimiter<String>>);

impl Governors {
    fn one(max: u32, period: Period) -> Self {
        let max = NonZeroU32::new(max).expect("limits here are above 0");
        let quota = Quota::with_period(Duration::from(period) / max.get())
            .expect("no limit here is above one for each nanosecond");
        Self(vec![DefaultKeyedRateLimiter::keyed(quota.allow_burst(max))])
    }

    fn six(max: [u32; 6]) -> Self {
        let limits = max.into_iter().zip(Period::NAMED);
        Self(limits.flat_map(|(max, period)| Self::one(max, period).0).collect())
    }
}

impl Contender for Governors {
    fn admits(&self, keys: &Keys, key: u32) -> bool {
        let name = &keys.names[key as usize];
        self.0.iter().all(|limiter| limiter.check_key(name).is_ok())
    }
}

fn on_one_key(keys: &Keys, table: &mut Table) -> Result<(), Box<dyn Error>> {
    const ROUNDS: usize = 41;
    let hot = [0; HOT_BLOCK];
    let mut row = |case: &str, passes: bool, ours: &Ours, theirs: &dyn Contender| {
        let side = |side: &dyn Contender| block(side, keys, &hot, passes);
        table.row(cells(case, compare(ROUNDS, |_| side(ours), |_| side(theirs))));
    };

    let endless = [ENDLESS; 6];
    let ours = Ours::new(endless)?;
    row("one key, ours: the noise", true, &ours, &Ours::new(endless)?);
    row("one key, one governor", true, &ours, &Governors::one(ENDLESS, Period::SECOND));
    row("one key, six governors", true, &ours, &Governors::six(endless));

    let mut month_is_full = endless;
    month_is_full[5] = 1;
    let ours = Ours::new(month_is_full)?;
    let one = Governors::one(1, Period::MONTH);
    let last = Governors::six(month_is_full);
    let mut first = Governors::six(month_is_full);
    first.0.rotate_right(1);
    for contender in [&ours as &dyn Contender, &one, &last, &first] {
        block(contender, keys, &[0], true);
    }
    row("one key, denied, one governor", false, &ours, &one);
    row("one key, denied, six governors, by the last", false, &ours, &last);
    row("one key, denied, six governors, by the first", false, &ours, &first);
    Ok(())
}

/// Returns ours, which knows all keys by then.
fn on_many_keys(keys: &Keys, speed: &mut Table, space: &mut Table) -> Result<Ours, Box<dyn Error>> {
    const ROUNDS: usize = 15;
    let endless = [ENDLESS; 6];
    let (ours, again) = (Ours::new(endless)?, Ours::new(endless)?);
    let one = Governors::one(ENDLESS, Period::SECOND);
    let six = Governors::six(endless);
    // Not in the order of the visits: a table that keeps the order of its entries would be read
    // from front to back.
    let numbers: Vec<u32> = (0..).take(MANY).collect();
    let mut fill = |name: &str, contender: &dyn Contender| {
        let region = Region::new(crate::ALLOCATOR);
        block(contender, keys, &numbers, true);
        let change = region.change();
        let held = change.bytes_allocated.saturating_sub(change.bytes_deallocated);
        space.row([name.to_owned(), (held / MANY).to_string()]);
    };
    fill("ours, six periods", &ours);
    fill("one governor", &one);
    fill("six governors", &six);
    block(&again, keys, &numbers, true);

    let mut row = |case: &str, theirs: &dyn Contender| {
        let side = |side: &dyn Contender, n| block(side, keys, keys.slice(n), true);
        speed.row(cells(case, compare(ROUNDS, |n| side(&ours, n), |n| side(theirs, n))));
    };
    row("a million keys, ours: the noise", &again);
    row("a million keys, one governor", &one);
    row("a million keys, six governors", &six);
    Ok(ours)
}

fn cells(case: &str, Comparison { ours, theirs, ratio }: Comparison) -> [String; 4] {
    [case.to_owned(), format!("{ours:.0}"), format!("{theirs:.0}"), ratio.to_string()]
}

/// How often the allocator is asked while known subjects are decided.
fn allocations(warm: &Ours, keys: &Keys) -> Result<Table, Box<dyn Error>> {
    let exhausted = Ours::new([1; 6])?;
    block(&exhausted, keys, &[0], true);
    let mut table = Table::new("allocations", ["case", "for each decision"]);
    for (case, ours, visits) in [
        ("ours, a million known keys, allowed", warm, &keys.order[..]),
        ("ours, one known key, denied", &exhausted, &[0; HOT_BLOCK]),
    ] {
        let region = Region::new(crate::ALLOCATOR);
        black_box(ours.admitted(keys, visits));
        let change = region.change();
        let count = (change.allocations + change.reallocations) as f64 / visits.len() as f64;
        table.row([case.to_owned(), count.to_string()]);
    }
    Ok(table)
}

/// How many pass small limits that two threads press against at once, beside how many may.
fn exactness(keys: &Keys) -> Result<Table, Box<dyn Error>> {
    const EACH: u32 = 50;
    let mut table = Table::new(
        "exactness (two threads on the same keys, 50 in each period, 200 tries for each key)",
        ["contender", "keys", "allowed", "admitted", "too many"],
    );
    for count in [1, 1_000] {
        let tries = keys.order[..count].repeat(100);
        let contenders: [(&str, &dyn Contender); 3] = [
            ("ours, six periods", &Ours::new([EACH; 6])?),
            ("one governor, month", &Governors::one(EACH, Period::MONTH)),
            ("six governors", &Governors::six([EACH; 6])),
        ];
        for (name, contender) in contenders {
            let admitted: usize = std::thread::scope(|scope| {
                let threads = [0, 1].map(|_| scope.spawn(|| contender.admitted(keys, &tries)));
                threads.map(|thread| thread.join().expect("deciding does not panic")).iter().sum()
            });
            let allowed = EACH as usize * count;
            let too_many = admitted.saturating_sub(allowed);
            let numbers = [count, allowed, admitted, too_many].map(|number| number.to_string());
            table.row([name.to_owned()].into_iter().chain(numbers));
        }
    }
    Ok(table)
}
