//! The wire format: the keys and arguments of the scripts, and their replies. No I/O.

pub(crate) mod arguments;
pub(crate) mod keys;
pub(crate) mod kind;
pub(crate) mod parts_reply;
pub(crate) mod placement;
pub(crate) mod policy;
pub(crate) mod reply;
pub(crate) mod reply_reader;
pub(crate) mod request;

/// The format in which counters are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// All limits of a subject in one key, as one binary string. It is the fastest and smallest
    /// layout.
    #[default]
    Packed,
    /// A decimal counter for each period. Its key expires when the window ends. For example,
    /// `consumer_abc123_PER_MINUTE` holds `42`.
    ///
    /// This layout supports only fixed windows of the six named periods that begin with the first
    /// request. Every other policy is a configuration failure. Consumers and addresses share names,
    /// so the id of a consumer should not look like an address.
    Readable,
}
