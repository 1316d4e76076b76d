use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

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
        let hash = blake3::hash(name.as_bytes());
        let mut digest = [0; 2];
        for (number, bytes) in digest.iter_mut().zip(hash.as_bytes().as_chunks::<7>().0) {
            *number = bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        }
        Self { name: name.into(), digest }
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

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Returns a digest of the name, as two numbers of 56 bits.
    pub(crate) const fn digest(&self) -> [u64; 2] {
        self.digest
    }
}

// Not derived, because a decision on several parts compares namespaces often. The texts are
// compared last: equal namespaces are mostly clones, and different ones have different digests.
impl PartialEq for Namespace {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.name, &other.name)
            || self.digest == other.digest && self.name == other.name
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidNamespace {
    name: String,
}

impl fmt::Display for InvalidNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "namespace {:?}: expected 1 to 64 characters of A-Z a-z 0-9 _ . -", self.name)
    }
}

impl std::error::Error for InvalidNamespace {}
