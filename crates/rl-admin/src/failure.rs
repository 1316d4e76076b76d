/// A system that the API depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dependency {
    /// The database of records.
    Database,
    /// The store of the counters.
    Counters,
}

/// A failed dependency, as the extension of an error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DependencyFailure {
    pub(crate) dependency: Dependency,
    pub(crate) kind: &'static str,
    pub(crate) cause: String,
}
