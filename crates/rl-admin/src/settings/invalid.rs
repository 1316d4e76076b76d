use std::fmt;

/// The error for an invalid variable. It contains no secret.
#[derive(PartialEq, Eq)]
pub(crate) struct InvalidSetting(pub(super) String);

rl_core::debug_as_display!(InvalidSetting);

impl fmt::Display for InvalidSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidSetting {}
