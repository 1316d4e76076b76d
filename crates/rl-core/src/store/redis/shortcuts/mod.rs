//! The layers that decide without the server, by cached denials or by leased units.

mod denial_cache;
mod leases;
mod monotonic;

pub(crate) use denial_cache::DenialCache;
pub(crate) use leases::{LeaseSettings, Leases};
pub(crate) use monotonic::MonotonicClock;
