use rl_core::RateLimiter;

/// The part of a limiter that counts and denies nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shadow {
    None,
    /// Some rules, by their names.
    Rules(Vec<String>),
    /// The limiter, or each of its rules.
    All,
}

impl Shadow {
    pub(crate) fn of(limiter: &RateLimiter) -> Self {
        let rules = limiter.rule_names().unwrap_or_default();
        let in_shadow = rules.iter().filter(|rule| limiter.rule(rule).is_shadow());
        let in_shadow: Vec<_> = in_shadow.cloned().collect();
        match in_shadow.len() {
            _ if limiter.is_shadow() => Self::All,
            0 => Self::None,
            count if count == rules.len() => Self::All,
            _ => Self::Rules(in_shadow),
        }
    }
}
