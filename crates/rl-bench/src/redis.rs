//! Decisions on Redis.
pub(crate) fn run() -> Result<(), Box<dyn std::error::Error>> {
    Ok(())
}
