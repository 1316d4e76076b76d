//! The Redis store on real servers.
//!
//! | module | what it covers |
//! |---|---|
//! | `behaviour` | decisions, keys, commands, permissions and damaged values on one server |
//! | `failure` | outages, overload, deadlines and the configuration |
//! | `leases` | units that are leased ahead |
//! | `shortcuts` | decisions without a call: cached denials, batches, leases |
//! | `topologies` | TLS, sentinels and clusters |

mod behaviour;
pub(crate) mod failure;
mod leases;
mod shortcuts;
mod topologies;
