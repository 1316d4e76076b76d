//! The wire format: the keys and arguments of the scripts, and their replies. No I/O.

pub(crate) mod arguments;
pub(crate) mod keys;
pub(crate) mod kind;
mod layout;
pub(crate) mod parts;
pub(crate) mod parts_reply;
pub(crate) mod placement;
pub(crate) mod policy;
pub(crate) mod reply;
pub(crate) mod reply_reader;
pub(crate) mod request;
mod settlement;

pub use layout::Layout;
