use super::{InvalidHeaderName, KeyExtractor, KeySecret, MAX_VALUE_LEN, RequestInfo, credential};
use crate::client_ip::header_name;
use crate::{Realm, Subject};

/// Counts by API key or token, as a keyed hash.
///
/// The key is any bytes, 1 to 4096 of them. A request in which it is empty, longer, or there twice
/// does not say who is counted. The same key is the same subject wherever it stands.
///
/// Keys are not verified: see the [module](super#security).
///
/// # Examples
///
/// ```
/// use rl_core::key::{ApiKey, KeyExtractor, KeySecret};
///
/// let secret = KeySecret::new(b"read me from the configuration")?;
/// let who = ApiKey::header("x-api-key", secret.clone())?.or(ApiKey::bearer(secret));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ApiKey {
    place: Place,
    secret: KeySecret,
}

/// Where the key stands in a request.
#[derive(Clone, Debug)]
enum Place {
    Header(Box<str>),
    Bearer,
    Query(Box<str>),
    Cookie(Box<str>),
}

impl ApiKey {
    /// The value of the header called `name`, in any case.
    ///
    /// # Errors
    ///
    /// Returns an error if no header can have that name.
    pub fn header(name: &str, secret: KeySecret) -> Result<Self, InvalidHeaderName> {
        Ok(Self { place: Place::Header(header_name(name)?), secret })
    }

    /// The token in `Authorization: Bearer …`.
    #[must_use]
    pub const fn bearer(secret: KeySecret) -> Self {
        Self { place: Place::Bearer, secret }
    }

    /// The value of the query parameter called `name`, read as forms are: `%61` is `a`, and `+` a
    /// space.
    #[must_use]
    pub fn query(name: &str, secret: KeySecret) -> Self {
        Self { place: Place::Query(name.into()), secret }
    }

    /// The value of the cookie called `name`, without quotes and with `%61` read as `a`.
    #[must_use]
    pub fn cookie(name: &str, secret: KeySecret) -> Self {
        Self { place: Place::Cookie(name.into()), secret }
    }

    fn hash(&self, key: &[u8]) -> Option<Subject> {
        (1..=MAX_VALUE_LEN).contains(&key.len()).then(|| self.secret.subject(Realm::Key, key))
    }
}

impl KeyExtractor for ApiKey {
    fn subject<R: RequestInfo>(&self, request: &R) -> Option<Subject> {
        let request: &dyn RequestInfo = request;
        match &self.place {
            Place::Header(name) => self.hash(request.only_header(name)?),
            Place::Bearer => self.hash(credential::bearer(request)?),
            Place::Query(name) => self.hash(&credential::parameter(request, name)?),
            Place::Cookie(name) => self.hash(&credential::cookie(request, name)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake_request::FakeRequest;
    use super::*;

    const KEY: &str = "sk_live_51H8xQ2eZvKYlo2C";

    fn secret() -> KeySecret {
        KeySecret::new(b"a secret for tests").unwrap()
    }

    fn hashed(key: &[u8]) -> Option<Subject> {
        Some(secret().subject(Realm::Key, key))
    }

    #[test]
    fn key_in_a_header() {
        let who = ApiKey::header("X-API-Key", secret()).unwrap();
        let one = |value: &[u8]| who.subject(&FakeRequest::get("/").header("x-api-key", value));
        assert_eq!(one(KEY.as_bytes()), hashed(KEY.as_bytes()));
        assert_eq!(one(b"\xff\xfe"), hashed(b"\xff\xfe"));
        assert_ne!(one(b"\xff"), one(b"\xfe"));
        assert_eq!(one(&[b'k'; 4_096]), hashed(&[b'k'; 4_096]));
        assert_eq!(one(&[b'k'; 4_097]), None);
        assert_eq!(one(b""), None);
        assert_eq!(who.subject(&FakeRequest::get("/")), None);
        let twice = FakeRequest::get("/").header("x-api-key", b"a").header("x-api-key", b"a");
        assert_eq!(who.subject(&twice), None);
        assert!(ApiKey::header("x api key", secret()).is_err());
    }

    #[test]
    #[rustfmt::skip]
    fn key_in_a_bearer_token() {
        let who = ApiKey::bearer(secret());
        let cases: [(&[u8], Option<&[u8]>); 10] = [
            (b"Bearer token",    Some(b"token")),
            (b"bearer token",    Some(b"token")),
            (b"BEARER   token ", Some(b"token")),
            (b"Bearer \xff",     Some(b"\xff")),
            (b"Bearer",          None),
            (b"Bearer ",         None),
            (b"Bearertoken",     None),
            (b"Basic token",     None),
            (b"token",           None),
            (b"",                None),
        ];
        for (value, key) in cases {
            let request = FakeRequest::get("/").header("authorization", value);
            assert_eq!(who.subject(&request), key.and_then(hashed), "{}", value.escape_ascii());
        }
        let twice = FakeRequest::get("/")
            .header("authorization", b"Bearer token")
            .header("authorization", b"Basic x");
        assert_eq!(who.subject(&twice), None);
    }

    #[test]
    #[rustfmt::skip]
    fn key_in_a_query_parameter() {
        let who = ApiKey::query("api_key", secret());
        let cases: [(&str, Option<&[u8]>); 12] = [
            ("/?api_key=abc",                  Some(b"abc")),
            ("/?x=1&api_key=%61b%63&y",        Some(b"abc")),
            ("/?api%5Fkey=abc",                Some(b"abc")),
            ("/?api_key=a+b",                  Some(b"a b")),
            ("/?api_key=a%20b",                Some(b"a b")),
            ("/?api_key=%ff%2B",               Some(b"\xff+")),
            ("/?api_key=a=b",                  Some(b"a=b")),
            ("/?api_key=100%",                 Some(b"100%")),
            ("/?api_key=abc&api_key=abc",      None),
            ("/?api_key=abc&api%5fkey=def",    None),
            ("/?api_key=&API_KEY=abc",         None),
            ("/",                              None),
        ];
        for (path, key) in cases {
            assert_eq!(who.subject(&FakeRequest::get(path)), key.and_then(hashed), "{path}");
        }
        let long = "%61".repeat(5_000);
        assert_eq!(who.subject(&FakeRequest::get(&format!("/?api_key={long}"))), None);
    }

    #[test]
    #[rustfmt::skip]
    fn key_in_a_cookie() {
        let who = ApiKey::cookie("session", secret());
        let cases: [(&[&str], Option<&str>); 8] = [
            (&["session=abc"],                     Some("abc")),
            (&["a=1; session=abc;b=2"],            Some("abc")),
            // HTTP/2 may split the header between cookies.
            (&["a=1", "session=abc"],              Some("abc")),
            (&["session=\"abc\""],                 Some("abc")),
            (&["session=%61bc"],                   Some("abc")),
            (&["session=abc; session=abc"],        None),
            (&["session=abc", "session=def"],      None),
            (&["session=; Session=abc; session2"], None),
        ];
        for (lines, key) in cases {
            let request = lines
                .iter()
                .fold(FakeRequest::get("/"), |request, line| request.header("cookie", line.as_bytes()));
            assert_eq!(who.subject(&request), key.and_then(|key| hashed(key.as_bytes())), "{lines:?}");
        }
        let bytes = FakeRequest::get("/").header("cookie", b"session=\xff");
        assert_eq!(who.subject(&bytes), hashed(b"\xff"));
    }

    #[test]
    fn key_is_not_shown() {
        let who = ApiKey::header("x-api-key", secret()).unwrap();
        let request = FakeRequest::get("/").header("x-api-key", KEY.as_bytes());
        let subject = who.subject(&request).unwrap();
        let shown = format!("{who:?} {subject:?} {} {}", subject.id(), subject.redacted());
        assert!(!shown.contains(KEY) && !shown.contains("a secret"), "{shown}");
    }
}
