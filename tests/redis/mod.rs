//! The Redis store on real servers.
//!
//! | module | what it covers |
//! |---|---|
//! | `behaviour` | decisions, keys, commands, permissions and damaged values on one server |
//! | `engine` | which program serves Redis |
//! | `failure` | outages, overload, deadlines and configuration failures |
//! | `leases` | units that nodes reserve ahead |
//! | `parts` | requests of three parts in processes that are killed and cut off |
//! | `shortcuts` | decisions that share a call or need none: batches, cached denials, leases |
//! | `topologies` | TLS, sentinels and clusters |

mod behaviour;
mod engine;
pub(crate) mod failure;
mod leases;
mod parts;
mod shortcuts;
mod topologies;
