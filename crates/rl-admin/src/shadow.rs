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
        let in_shadow = limiter.rule_names_in_shadow();
        match limiter.rule_names() {
            _ if limiter.is_shadow() => Self::All,
            _ if in_shadow.is_empty() => Self::None,
            Some(rules) if rules.len() == in_shadow.len() => Self::All,
            _ => Self::Rules(in_shadow),
        }
    }
}
