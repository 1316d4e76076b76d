use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use super::multilinear_hash::{HashSums, Key, NUMBER_BYTES, RandomKeys};

/// The number of keys for the longest name, which is that of a rule.
const NAME_NUMBERS: usize = (64_usize + 1 + 64).div_ceil(NUMBER_BYTES) + 1;

/// The keys of the digests of all namespaces in this process.
static KEYS: LazyLock<Box<NamespaceKeys>> = LazyLock::new(|| {
    let mut keys = RandomKeys::new();
    Box::new(NamespaceKeys { length: keys.next(), name: keys.many() })
});

struct NamespaceKeys {
    length: Key,
    name: [Key; NAME_NUMBERS],
}

/// The name under which a limiter counts. Limiters in different namespaces of one store share no
/// counters.
///
/// A name has 1 to 64 characters of `A-Z a-z 0-9 _ . -`. The default is `default`.
///
/// # Examples
///
/// ```
/// use rl_core::store::Namespace;
///
/// let login: Namespace = "login".parse()?;
/// assert_ne!(login, Namespace::default());
/// # Ok::<(), rl_core::store::InvalidNamespace>(())
/// ```
#[derive(Clone, Eq)]
pub struct Namespace {
    name: Arc<str>,
    digest: [u64; 2],
}

impl Namespace {
    fn new(name: &str) -> Self {
        let mut sums = HashSums::new([0; 2]);
        sums.add(name.len() as u64, KEYS.length);
        sums.add_text(name.as_bytes(), &KEYS.name);
        Self { name: name.into(), digest: sums.reduced() }
    }

    /// Returns the namespace of the rule called `name` in this namespace, such as `default/login`.
    ///
    /// No other namespace has this name, because only the names of rules contain `/`.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is not 1 to 64 characters of `A-Z a-z 0-9 _ . -`.
    pub fn rule(&self, name: &str) -> Result<Self, InvalidNamespace> {
        let rule: Self = name.parse()?;
        Ok(Self::new(&format!("{self}/{rule}")))
    }

    /// Returns the name of the rule whose namespace this is, if the rule belongs to a limiter with
    /// the namespace `limiter`: `login` for `default/login` and `default`.
    pub(crate) fn rule_below(&self, limiter: &str) -> Option<&str> {
        self.name.strip_prefix(limiter)?.strip_prefix('/')
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Returns a keyed hash of the name, which differs between processes. Different names have the
    /// same first number with a probability of 2^-61, and the same two numbers with 2^-122.
    pub(crate) const fn digest(&self) -> [u64; 2] {
        self.digest
    }
}

// Not derived, because a decision on several parts compares namespaces often. Different namespaces
// have different digests, and equal ones are mostly clones, so texts are seldom compared.
impl PartialEq for Namespace {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
            && (Arc::ptr_eq(&self.name, &other.name) || self.name == other.name)
    }
}

impl Hash for Namespace {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Namespace").field(&self.name).finish()
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new("default")
    }
}

impl std::str::FromStr for Namespace {
    type Err = InvalidNamespace;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
        if (1..=64).contains(&name.len()) && name.bytes().all(fits) {
            Ok(Self::new(name))
        } else {
            Err(InvalidNamespace { name: name.chars().take(80).collect() })
        }
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The error for a text that is not a [`Namespace`].
#[derive(Clone, PartialEq, Eq)]
pub struct InvalidNamespace {
    name: String,
}

debug_as_display!(InvalidNamespace);

impl fmt::Display for InvalidNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "namespace {:?}: expected 1 to 64 characters of A-Z a-z 0-9 _ . -", self.name)
    }
}

impl std::error::Error for InvalidNamespace {}
