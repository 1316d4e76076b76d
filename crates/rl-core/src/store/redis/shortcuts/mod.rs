//! The layers that decide without the server, by cached denials and by units that were charged
//! ahead.

mod denial_cache;
mod leases;
mod monotonic;

pub(crate) use denial_cache::DenialCache;
pub(crate) use leases::{LeaseSettings, Leases};
pub(crate) use monotonic::MonotonicClock;
