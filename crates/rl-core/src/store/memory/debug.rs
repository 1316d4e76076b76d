use std::fmt;

use super::MemoryStore;

impl<C: fmt::Debug> fmt::Debug for MemoryStore<C> {
    /// Shows no entries. There may be millions of them, and their shards would be locked while they
    /// are formatted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("clock", &self.clock).finish_non_exhaustive()
    }
}
