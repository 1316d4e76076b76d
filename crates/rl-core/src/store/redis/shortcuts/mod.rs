//! Answers without the server: denials that are known, and units that were leased ahead.

pub(crate) mod denial_cache;
pub(crate) mod leases;
pub(crate) mod monotonic;
