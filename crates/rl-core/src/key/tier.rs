use std::fmt;
use std::sync::Arc;

/// The name of a group of clients with limits of their own, such as `pro`.
///
/// An authentication layer leaves the tier of a client in the extensions of the request.
/// [`Rules::tier_by`](crate::rules::Rules::tier_by) finds it by subject instead. A
/// [`Rule`](crate::rules::Rule) can have limits for each tier. A client without a tier, or in a
/// tier that the rule does not name, has the limits of the rule itself.
///
/// # Examples
///
/// ```
/// use rl_core::key::Tier;
///
/// let tier = Tier::new("pro");
/// assert_eq!(tier.name(), "pro");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tier(Arc<str>);

impl Tier {
    /// Creates the tier called `name`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
