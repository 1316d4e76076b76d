/// The format in which counters are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// All limits of a subject in one key, as one binary string: the fastest and smallest.
    #[default]
    Packed,
    /// A decimal counter for each period, whose expiry is the end of the window:
    /// `consumer_abc123_PER_MINUTE` holds `42`.
    ///
    /// Only for fixed windows of the six named periods that begin with the first request; other
    /// policies are a configuration failure. Consumers and addresses share one space of names, so
    /// the id of a consumer should not look like an address.
    Readable,
}
