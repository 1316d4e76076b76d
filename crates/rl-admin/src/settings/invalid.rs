use std::fmt;

/// The error for an invalid setting. It contains no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct InvalidSetting {
    variable: &'static str,
    reason: String,
}

impl InvalidSetting {
    /// Creates the error for an environment variable, or for several that belong together.
    pub fn new(variable: &'static str, reason: impl Into<String>) -> Self {
        Self { variable, reason: reason.into() }
    }

    /// Returns the name of the variable.
    #[must_use]
    pub const fn variable(&self) -> &'static str {
        self.variable
    }

    /// Returns the reason, with what is expected.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

rl_core::debug_as_display!(InvalidSetting);

impl fmt::Display for InvalidSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.variable, self.reason)
    }
}

impl std::error::Error for InvalidSetting {}
