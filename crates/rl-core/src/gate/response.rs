/// A response as the limiter sees it, whatever the framework.
pub trait ResponseInfo {
    /// The status.
    fn status(&self) -> u16;

    /// Calls `each` with the value of every header line called `name` (in lower case), in order.
    fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8]));
}
