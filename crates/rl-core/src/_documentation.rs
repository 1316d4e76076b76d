//! The documents of `docs/` as pages, so that their links and examples are checked.

#[doc = include_str!("../docs/ALGORITHMS.md")]
pub mod algorithms {}

#[doc = include_str!("../docs/DESIGN.md")]
pub mod design {}

#[doc = include_str!("../docs/OBSERVABILITY.md")]
pub mod observability {}

#[doc = include_str!("../docs/REDIS.md")]
pub mod redis {}
