use super::{InvalidHeaderName, KeyExtractor, MAX_VALUE_LEN, RequestInfo};
use crate::client_ip::header_name;
use crate::{Realm, Subject};

/// Counts by the plain value of a header: who a gateway in front says the client is.
///
/// The gateway must overwrite the header whatever the client sent, and be the only way in: else
/// anybody is who they like. Secrets belong in [`ApiKey`](super::ApiKey), which hashes them.
///
/// A request in which the header is missing, there twice, empty, longer than 4096 bytes or not
/// UTF-8 does not say who is counted.
///
/// # Examples
///
/// ```
/// use rl_core::Realm;
/// use rl_core::key::Header;
///
/// let who = Header::new("x-consumer-id", Realm::Consumer)?;
/// # Ok::<(), rl_core::key::InvalidHeaderName>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    name: Box<str>,
    realm: Realm,
}

impl Header {
    /// The value of the header called `name`, in any case, as an id in `realm`.
    ///
    /// # Errors
    ///
    /// Returns an error if no header can have that name.
    pub fn new(name: &str, realm: Realm) -> Result<Self, InvalidHeaderName> {
        Ok(Self { name: header_name(name)?, realm })
    }
}

impl KeyExtractor for Header {
    fn subject<R: RequestInfo>(&self, request: &R) -> Option<Subject> {
        let request: &dyn RequestInfo = request;
        let value = request.only_header(&self.name)?;
        let id = std::str::from_utf8(value).ok()?;
        (1..=MAX_VALUE_LEN).contains(&id.len()).then(|| Subject::new(self.realm.clone(), id))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake_request::FakeRequest;
    use super::*;

    #[test]
    fn value_is_the_id() {
        let who = Header::new("X-Consumer-Id", Realm::Consumer).unwrap();
        let one = |value: &[u8]| who.subject(&FakeRequest::get("/").header("x-consumer-id", value));
        assert_eq!(one(b"abc123"), Some(Subject::consumer("abc123")));
        assert_eq!(one(&[b'a'; 4_096]), Some(Subject::consumer(&"a".repeat(4_096))));
        for value in [&b""[..], b"\xff", &[b'a'; 4_097]] {
            assert_eq!(one(value), None);
        }
        assert_eq!(who.subject(&FakeRequest::get("/")), None);
        let twice =
            FakeRequest::get("/").header("x-consumer-id", b"a").header("x-consumer-id", b"b");
        assert_eq!(who.subject(&twice), None);
    }
}
