use std::num::NonZeroU8;

use crate::model::{Algorithm, Limit, Packed, Refill, WindowPlan};
use crate::policy::{NamedLimit, Policy};

const PLACES: usize = Packed::PLACES;

/// Which states there are, and in which order: what subjects of one policy have in common.
///
/// Policies that count in the same states differ in what they allow, and so does how much of it is used
/// up. So each has a shape of its own, as long as there are not too many of them.
#[derive(Debug)]
pub(super) struct Shape {
    layouts: Box<[Layout]>,
    /// The policy that came first.
    policy: Policy,
    /// Of each window what one unit is of its limit, 2^40 / max; 0 if it is in shadow.
    units: [u64; PLACES],
    /// Whether there are states that are no windows.
    has_others: bool,
    /// What tells the states from others: none has a precision.
    states: [u64; PLACES],
    /// The most units of each, if all are windows that are decided in one pass.
    max: [u64; PLACES],
}

/// Where the state of one limit is kept.
#[derive(Debug)]
pub(super) struct Layout {
    /// The limit that counts in it, of the policy that came first; when a state expires does not depend on
    /// which.
    pub(super) limit: NamedLimit,
    pub(super) place: usize,
    pub(super) second: Second,
}

/// The kinds of the third and the fourth cell of a state, which take a place of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Second {
    None,
    /// The third is a time; there is no fourth.
    Time,
    TimeAndNumber,
    NumberAndTime,
}

impl Shape {
    /// The shape of the policy, if there are places for its states.
    fn of(policy: &Policy) -> Option<Self> {
        let mut next = 0;
        let layouts = policy.limits().iter().map(|named| {
            let second = match named.limit().algorithm() {
                Algorithm::FixedWindow { .. } => Second::None,
                Algorithm::Gcra { .. } => Second::Time,
                Algorithm::TokenBucket { refill: Refill::Greedy, .. } => Second::Time,
                Algorithm::TokenBucket { refill: Refill::Interval, .. } => Second::TimeAndNumber,
                Algorithm::SlidingWindowCounter => Second::NumberAndTime,
                Algorithm::SlidingWindow { .. } => return None,
                Algorithm::SlidingLog | Algorithm::Concurrency => return None,
            };
            let place = next;
            next += 1 + usize::from(second != Second::None);
            (next <= PLACES).then(|| Layout { limit: named.clone(), place, second })
        });
        let layouts = layouts.collect::<Option<Box<[Layout]>>>()?;
        let (mut states, mut units, mut has_others) = ([0; PLACES], [0; PLACES], false);
        for (state, layout) in states.iter_mut().zip(&layouts) {
            *state = layout.limit.state().bits();
            let limit = layout.limit.limit();
            match limit.algorithm() {
                Algorithm::FixedWindow { .. } if limit.is_shadow() => {}
                Algorithm::FixedWindow { .. } => {
                    units[layout.place] = (1 << 40) / limit.max().max(1);
                }
                _ => has_others = true,
            }
        }
        let max = policy.windows().map_or([0; PLACES], |plan| plan.max);
        let policy = policy.clone();
        Some(Self { layouts, policy, units, has_others, states, max })
    }

    /// Whether it is of this very policy.
    #[inline]
    pub(super) fn is_policy(&self, policy: &Policy) -> bool {
        self.policy.is_handle_of(policy)
    }

    /// Whether limits that are decided in one pass count in these states, in this order.
    #[inline]
    pub(super) fn is_of_windows(&self, plan: &WindowPlan) -> bool {
        let both = self.states.iter().zip(plan.states);
        both.fold(0, |differences, (state, other)| differences | (state ^ other)) == 0
    }

    /// Whether they allow as much as the windows of the policy that came first.
    #[inline]
    pub(super) fn has_maxima_of(&self, plan: &WindowPlan) -> bool {
        let both = self.max.iter().zip(plan.max);
        both.fold(0, |differences, (max, other)| differences | (max ^ other)) == 0
    }

    /// The limits as numbers, if they are windows that are decided in one pass.
    #[inline]
    pub(super) fn windows(&self) -> Option<&WindowPlan> {
        self.policy.windows()
    }

    pub(super) fn layouts(&self) -> &[Layout] {
        &self.layouts
    }

    /// Whether the policy's limits count in these states, in this order.
    #[inline]
    pub(super) fn is_of(&self, policy: &Policy) -> bool {
        let limits = policy.limits();
        limits.len() == self.layouts.len()
            && limits
                .iter()
                .zip(&self.layouts)
                .all(|(named, layout)| named.state() == layout.limit.state())
    }

    /// Whether the policy's limits are those of the policy that came first.
    pub(super) fn is_of_limits(&self, policy: &Policy) -> bool {
        self.policy.is_handle_of(policy) || self.policy == *policy
    }

    /// How much of its limits who has counted so far in these states has used up, in 255ths: of the window
    /// of which it is the most.
    pub(super) fn consumed(&self, states: &Packed) -> u8 {
        let shares = (0..PLACES).map(|i| states.number(i).saturating_mul(self.units[i]) >> 32);
        shares.max().map_or(0, |most| u8::try_from(most).unwrap_or(u8::MAX))
    }

    /// Whether there are states that are no windows.
    pub(super) const fn has_others(&self) -> bool {
        self.has_others
    }

    /// The limits that are no windows.
    pub(super) fn others(&self) -> impl Iterator<Item = &Layout> {
        let is_window = |limit: Limit| matches!(limit.algorithm(), Algorithm::FixedWindow { .. });
        self.layouts.iter().filter(move |layout| !is_window(layout.limit.limit()))
    }
}

/// The most shapes of a shard.
const MOST: usize = u8::MAX as usize;

/// The shapes that subjects of one shard have.
#[derive(Debug, Default)]
pub(super) struct Shapes(Vec<Shape>);

impl Shapes {
    #[inline]
    pub(super) fn get(&self, place: usize) -> &Shape {
        &self.0[place]
    }

    /// Whether there are so many that limits which count in the same states do not get more: those are
    /// judged by the limits that came first.
    #[inline]
    pub(super) fn are_many(&self) -> bool {
        self.0.len() >= MOST / 2
    }

    /// The number of the policy's shape: none, if there are no places for its states, or if there are
    /// 255 others. What is kept for one policy is kept for good, so they are not for the inventive: half of
    /// them are for other states alone, and not for other limits that count in the same.
    pub(super) fn number(&mut self, policy: &Policy) -> Option<NonZeroU8> {
        match self.known(policy) {
            Some(Known { number, is_its_own: true }) => return Some(number),
            Some(Known { number, .. }) if self.are_many() => return Some(number),
            None if self.0.len() >= MOST => return None,
            _ => self.0.push(Shape::of(policy)?),
        }
        u8::try_from(self.0.len()).ok().and_then(NonZeroU8::new)
    }

    /// The shape that the policy's limits count in: that of its own, if it has one.
    pub(super) fn known(&self, policy: &Policy) -> Option<Known> {
        let mut shapes = self.0.iter();
        let its_own = shapes.clone().position(|shape| shape.is_of_limits(policy));
        let place = its_own.or_else(|| shapes.position(|shape| shape.is_of(policy)))?;
        let number = u8::try_from(place + 1).ok().and_then(NonZeroU8::new)?;
        Some(Known { number, is_its_own: its_own.is_some() })
    }
}

/// A shape that a policy's limits count in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) number: NonZeroU8,
    /// Whether it is of the very limits, and not of others that count in the same states.
    pub(super) is_its_own: bool,
}
