/// A view of a response that is the same in every framework.
pub trait ResponseInfo {
    /// Returns the HTTP status.
    fn status(&self) -> u16;

    /// Calls `each` with the value of every header line called `name` (in lower case), in order.
    fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8]));

    /// Returns the value of the first header line called `name` (in lower case).
    fn header<'a>(&'a self, name: &str) -> Option<&'a [u8]> {
        let mut first = None;
        self.header_lines(name, &mut |line| {
            first.get_or_insert(line);
        });
        first
    }
}
