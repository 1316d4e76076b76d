/// A system that the API depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dependency {
    /// The database of records.
    Database,
    /// The store of the counters.
    Counters,
}

/// A failed dependency, which an error response carries in its extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DependencyFailure {
    pub(crate) dependency: Dependency,
    pub(crate) kind: &'static str,
    pub(crate) cause: String,
}
