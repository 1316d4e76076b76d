use std::net::IpAddr;

/// A request as the limiter sees it, whatever the framework.
///
/// The adapters implement it, so that one [`KeyExtractor`](super::KeyExtractor) works in all of them.
/// Everything in it but [`peer`](Self::peer), [`route`](Self::route) and
/// [`extension`](Self::extension) was written by the client.
pub trait RequestInfo {
    /// The method, such as `GET`.
    fn method(&self) -> &str;

    /// The path as the client wrote it.
    fn path(&self) -> &str;

    /// What follows the `?`, if there is one.
    fn query(&self) -> Option<&str>;

    /// The pattern of the route that matched, such as `/users/{id}`, where the framework tells.
    fn route(&self) -> Option<&str>;

    /// Calls `each` with the value of every header line called `name` (in lower case), in order.
    ///
    /// Values are any bytes but control characters.
    fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8]));

    /// The address at the other end of the connection, where the framework knows it.
    fn peer(&self) -> Option<IpAddr>;

    /// What an earlier layer put into the request's extensions under the type `T`.
    fn extension<T, U>(&self, read: impl FnOnce(&T) -> U) -> Option<U>
    where
        T: Send + Sync + 'static,
        Self: Sized;
}

impl dyn RequestInfo + '_ {
    /// The value of the only header line called `name`; none if there are several or none.
    ///
    /// A header that decides who is counted must not be ambiguous: of two values the client could
    /// show one to us and the other to the service.
    #[must_use]
    pub fn only_header<'a>(&'a self, name: &str) -> Option<&'a [u8]> {
        let (mut found, mut lines) = (None, 0);
        self.header_lines(name, &mut |value| {
            found = Some(value);
            lines += 1;
        });
        found.filter(|_| lines == 1)
    }
}
