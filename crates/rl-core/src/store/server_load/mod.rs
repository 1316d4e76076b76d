//! The load of a server: the decisions in flight, their bound, and the verdict on time-outs.
//!
//! # Outage or overload
//!
//! When a decision times out, the replies of the server that it was sent to show the reason
//! ([`Replies`]). Replies of other servers say nothing about it.
//!
//! | in the second half of the wait | meaning |
//! |---|---|
//! | a reply was outstanding, and the server sent none | it answers nothing any more: an outage |
//! | the server sent a reply to any call, or none was outstanding | it is late: an overload |
//!
//! Exception: in the first second without a reply, a burst counts as overload, because the server
//! may be busy with a few large calls.
//!
//! A request that needs several servers is undecided because of an outage if one of them does not
//! reply.
//!
//! # The bound
//!
//! A server that receives more calls than it can handle answers all of them late. A late answer is
//! useless: the server has done the work, but the request has timed out. So the number in flight is
//! bounded by the number of replies (Little's law):
//!
//! ```text
//! bound = replies per second * 3/4 of the deadline
//! ```
//!
//! The load keeps the replies per second, because each limiter has a deadline of its own. Only two
//! events change them: a late decision lowers them to what the server makes, and a refused decision
//! raises them. All other decisions only count their replies. Latency alone does not change the
//! bound, because a process without CPU time is slow under any bound.
//!
//! A bound that has refused nothing for some seconds is lifted, also if the server has sent no
//! reply for that time. Otherwise the bound of an old overload would reject requests during an
//! outage.

mod load;
mod replies;
mod slots;
#[cfg(test)]
mod tests;

#[cfg(test)]
use load::QUIET_PERIOD;
pub use load::ServerLoad;
pub(crate) use load::{CallBounds, FullServer};
pub(crate) use replies::Replies;
pub use replies::ServerCall;
#[cfg(feature = "redis-cluster")]
pub(crate) use replies::ServerGroup;
pub use slots::ServerLoads;
pub(crate) use slots::ServerSlots;
