use super::{AmbiguousKey, InvalidHeaderName, KeyExtractor, MAX_VALUE_LEN, RequestInfo};
use crate::client_ip::header_name;
use crate::model::{Realm, Subject};

/// Counts by the plain value of a header in which a gateway in front names the client.
///
/// The gateway must overwrite the header in every request, and be the only way in. Otherwise a client
/// chooses its own identity. Secrets belong in [`ApiKey`](super::ApiKey), which hashes them.
///
/// A request in which the header is missing or empty has no key. One in which it stands twice, is padded,
/// is longer than 65536 bytes or is not UTF-8 is [ambiguous](AmbiguousKey): another reader could read
/// another client from it.
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
    /// Takes the value of the header called `name`, in any case, for an id in `realm`.
    ///
    /// # Errors
    ///
    /// Returns an error if no header can have that name.
    pub fn new(name: &str, realm: Realm) -> Result<Self, InvalidHeaderName> {
        Ok(Self { name: header_name(name)?, realm })
    }
}

impl KeyExtractor for Header {
    fn subject<R: RequestInfo>(&self, request: &R) -> Result<Option<Subject>, AmbiguousKey> {
        let Some(value) = request.only_header(&self.name)? else { return Ok(None) };
        if value.len() > MAX_VALUE_LEN {
            return Err(AmbiguousKey);
        }
        let id = std::str::from_utf8(value).map_err(|_| AmbiguousKey)?;
        Ok(Some(Subject::new(self.realm.clone(), id)))
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
        for id in ["abc123", "CN=a b, O=c", "é", "a".repeat(65_536).as_str()] {
            assert_eq!(one(id.as_bytes()), Ok(Some(Subject::consumer(id))));
        }
        assert_eq!(one(b""), Ok(None));
        for value in [&b" a"[..], b"a\t", b"\xff", &[b'a'; 65_537]] {
            assert_eq!(one(value), Err(AmbiguousKey));
        }
        assert_eq!(who.subject(&FakeRequest::get("/")), Ok(None));
        let twice =
            FakeRequest::get("/").header("x-consumer-id", b"a").header("x-consumer-id", b"a");
        assert_eq!(who.subject(&twice), Err(AmbiguousKey));
    }
}
