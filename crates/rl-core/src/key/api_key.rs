use std::borrow::Cow;

use super::extractors::of_realm;
use super::{AmbiguousKey, CountedAs, KeyExtractor, KeySecret, RequestInfo, credential};
use crate::client_ip::InvalidHeaderName;
use crate::client_ip::header_name;
use crate::model::{Realm, Subject};

/// Counts by API key or token, as a keyed hash.
///
/// A key is one word of visible ASCII without a comma, of 1 to 65536 bytes. The same key is the
/// same subject, wherever it is in the request. A missing or empty key counts as no key.
///
/// A key is [ambiguous](super::AmbiguousKey), and its request is rejected, in cases that services
/// read differently:
///
/// * The key occurs twice, is too long, or contains other bytes.
/// * The name of the parameter or cookie differs in case.
/// * A parameter contains a raw `+` or a semicolon.
/// * One `Authorization` line contains several credentials.
///
/// Keys are not verified: see the [module](super#security). [`known`](super::KeyExtractor::known)
/// is for services that can recognize their keys.
///
/// A service may accept keys in two places of a request. Then chain the extractors with
/// [`or`](super::KeyExtractor::or) in the order in which the service itself reads the keys.
/// Otherwise a client can add an invented key in the place that the limiter reads first, and is
/// counted under that key.
///
/// # Examples
///
/// ```
/// use rl_core::Realm;
/// use rl_core::key::{ApiKey, ClientAddress, KeyExtractor, KeySecret};
///
/// let secret = KeySecret::new(b"read me from the configuration")?;
/// let sold = secret.subject(Realm::Key, b"key-of-alice");
/// let key = ApiKey::header("x-api-key", secret.clone())?
///     .or(ApiKey::bearer(secret))
///     .known(move |key| *key == sold) // a client cannot invent keys
///     .or(ClientAddress::default());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ApiKey {
    location: Location,
    secret: KeySecret,
}

/// The part of a request that holds the key.
#[derive(Clone, Debug)]
enum Location {
    Header(Box<str>),
    Authorization(Cow<'static, str>),
    Query(Box<str>),
    Cookie(Box<str>),
}

impl ApiKey {
    /// Creates an extractor that reads the header `name`, in any case.
    ///
    /// For `Authorization` use [`bearer`](Self::bearer) or [`authorization`](Self::authorization),
    /// which read the scheme. In binary metadata of gRPC, such as `x-key-bin`, the key is the text
    /// without the padding `=` at its end.
    ///
    /// # Errors
    ///
    /// Returns an error if `name` is not a valid header name.
    pub fn header(name: &str, secret: KeySecret) -> Result<Self, InvalidHeaderName> {
        Ok(Self { location: Location::Header(header_name(name)?), secret })
    }

    /// Creates an extractor that reads the token in `Authorization: Bearer …`.
    #[must_use]
    pub const fn bearer(secret: KeySecret) -> Self {
        Self { location: Location::Authorization(Cow::Borrowed("Bearer")), secret }
    }

    /// Creates an extractor that reads the token in `Authorization: SCHEME …`, with the scheme in
    /// any case.
    ///
    /// A request with another scheme has no key.
    #[must_use]
    pub fn authorization(scheme: &str, secret: KeySecret) -> Self {
        Self { location: Location::Authorization(scheme.to_owned().into()), secret }
    }

    /// Creates an extractor that reads the query parameter `name`, decoded as a form: `%61` is `a`.
    #[must_use]
    pub fn query(name: &str, secret: KeySecret) -> Self {
        Self { location: Location::Query(name.into()), secret }
    }

    /// Creates an extractor that reads the value of the cookie `name`. Quotes around the value are
    /// removed, and percent escapes are decoded: `%61` is `a`.
    #[must_use]
    pub fn cookie(name: &str, secret: KeySecret) -> Self {
        Self { location: Location::Cookie(name.into()), secret }
    }
}

impl ApiKey {
    /// Returns the key itself.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is ambiguous.
    pub(crate) fn key<'a>(
        &self,
        request: &'a dyn RequestInfo,
    ) -> Result<Option<Cow<'a, [u8]>>, AmbiguousKey> {
        match &self.location {
            Location::Header(name) => Ok(credential::header(request, name)?.map(Cow::Borrowed)),
            Location::Authorization(scheme) => {
                Ok(credential::token(request, scheme)?.map(Cow::Borrowed))
            }
            Location::Query(name) => credential::parameter(request, name),
            Location::Cookie(name) => credential::cookie(request, name),
        }
    }
}

impl KeyExtractor for ApiKey {
    fn subject(&self, request: &dyn RequestInfo) -> Result<Option<Subject>, AmbiguousKey> {
        Ok(self.key(request)?.map(|key| self.secret.subject(Realm::Key, &key)))
    }

    fn counts(&self, subject: &Subject) -> CountedAs {
        of_realm(&Realm::Key, subject)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake_request::FakeRequest;
    use super::*;

    const KEY: &str = "sk_live_51H8xQ2eZvKYlo2C";

    /// Fault: one key in binary metadata of gRPC was several subjects, because services read it
    /// with and without padding.
    #[test]
    fn the_padding_of_binary_metadata_makes_no_other_subject() {
        let secret = KeySecret::new(&[7; 32]).unwrap();
        let key = ApiKey::header("x-key-bin", secret).unwrap();
        let subject =
            |value: &[u8]| key.subject(&FakeRequest::get("/").header("x-key-bin", value)).unwrap();
        assert_eq!(subject(b"YWxpY2U="), subject(b"YWxpY2U"));
        assert_ne!(subject(b"YWxpY2U"), subject(b"YWxpY2"));
        assert_eq!(subject(b"=="), None);
    }

    /// The expected result of reading a request: a key, no key, or an ambiguous key.
    #[derive(Clone, Copy)]
    enum Expected<'a> {
        Key(&'a [u8]),
        Missing,
        Ambiguous,
    }
    use Expected::{Ambiguous, Key, Missing};

    impl Expected<'_> {
        fn subject(self) -> Result<Option<Subject>, AmbiguousKey> {
            match self {
                Key(key) => Ok(Some(secret().subject(Realm::Key, key))),
                Missing => Ok(None),
                Ambiguous => Err(AmbiguousKey),
            }
        }
    }

    fn secret() -> KeySecret {
        KeySecret::new(b"a secret for tests").unwrap()
    }

    #[test]
    #[rustfmt::skip]
    fn key_in_a_header() {
        let extractor = ApiKey::header("X-API-Key", secret()).unwrap();
        let longest = [b'k'; 65_536];
        let longer = [b'k'; 65_537];
        let cases: [(&[&[u8]], Expected<'_>); 17] = [
            (&[],                    Missing),
            (&[KEY.as_bytes()],      Key(KEY.as_bytes())),
            (&[b"{a}:b\"%0d\\"],      Key(b"{a}:b\"%0d\\")),
            (&[&longest],            Key(&longest)),
            (&[b""],                 Missing),
            (&[b"a", b"a"],          Ambiguous),
            (&[b"a", b"b"],          Ambiguous),
            (&[b"a", b""],           Ambiguous),
            (&[b"", b""],            Ambiguous),
            (&[b"a, b"],             Ambiguous),
            (&[b"a,"],               Ambiguous),
            (&[b" a"],               Ambiguous),
            (&[b"a\t"],              Ambiguous),
            (&[b"a b"],              Ambiguous),
            (&[b"a\xa0"],            Ambiguous),
            (&[b" "],                Ambiguous),
            (&[&longer],             Ambiguous),
        ];
        for (lines, expected) in cases {
            let request = lines.iter().fold(FakeRequest::get("/"), |request, line| {
                request.header("x-api-key", line)
            });
            let shown = lines.first().map(|line| line[..line.len().min(40)].escape_ascii().to_string());
            assert_eq!(extractor.subject(&request), expected.subject(), "{shown:?}");
        }
        assert!(ApiKey::header("x api key", secret()).is_err());
    }

    #[test]
    #[rustfmt::skip]
    fn key_in_a_token() {
        let extractor = ApiKey::bearer(secret());
        let cases: [(&[u8], Expected<'_>); 19] = [
            (b"Bearer token",            Key(b"token")),
            (b"bearer token",            Key(b"token")),
            (b"BEARER   token",          Key(b"token")),
            (b"Bearer",                  Missing),
            (b"Bearertoken",             Missing),
            (b"Bearer-token x",          Missing),
            (b"Basic token",             Missing),
            (b"Digest a=\"b\", c=\"d\"", Missing),
            (b"token",                   Missing),
            (b"",                        Missing),
            (b"Bearer ",                 Ambiguous),
            (b"Bearer token ",           Ambiguous),
            (b" Bearer token",           Ambiguous),
            (b"Bearer\ttoken",           Ambiguous),
            (b"Bearer\xa0token",         Ambiguous),
            (b"Bearer:token",            Ambiguous),
            (b"Bearer token x",          Ambiguous),
            (b"Bearer token, Basic x",   Ambiguous),
            (b"Basic x,bearer token",    Ambiguous),
        ];
        for (value, expected) in cases {
            let request = FakeRequest::get("/").header("authorization", value);
            assert_eq!(extractor.subject(&request), expected.subject(), "{}", value.escape_ascii());
        }
        let twice = FakeRequest::get("/")
            .header("authorization", b"Bearer token")
            .header("authorization", b"Basic x");
        assert_eq!(extractor.subject(&twice), Err(AmbiguousKey));
        let other = ApiKey::authorization("ApiKey", secret());
        let request = FakeRequest::get("/").header("authorization", b"apikey token");
        assert_eq!((other.subject(&request), extractor.subject(&request)), (Key(b"token").subject(), Ok(None)));
    }

    #[test]
    #[rustfmt::skip]
    fn key_in_a_query_parameter() {
        let extractor = ApiKey::query("api_key", secret());
        let cases: [(&str, Expected<'_>); 26] = [
            ("/?api_key=abc",                  Key(b"abc")),
            ("/?x=1&api_key=%61b%63&y",        Key(b"abc")),
            ("/?api%5Fkey=abc",                Key(b"abc")),
            ("/?api_key=%2Ba",                 Key(b"+a")),
            ("/?api_key=a=b",                  Key(b"a=b")),
            ("/?x=1;y=2&api_key=abc",          Key(b"abc")),
            ("/?api_key=",                     Missing),
            ("/?api_key",                      Missing),
            ("/?api_keys=abc",                 Missing),
            ("/?x=api_key=abc",                Missing),
            ("/",                              Missing),
            ("/?api_key=abc&api_key=abc",      Ambiguous),
            ("/?api_key=abc&api%5fkey=def",    Ambiguous),
            ("/?api_key=abc&api_key=",         Ambiguous),
            ("/?api_key=&API_KEY=abc",         Ambiguous),
            ("/?API_KEY=abc",                  Ambiguous),
            ("/?+api_key=abc",                 Ambiguous),
            ("/?x=1;api_key=abc",              Ambiguous),
            ("/?api_key;x=abc",                Ambiguous),
            ("/?api_key=abc;x=1",              Ambiguous),
            ("/?api_key=a+b",                  Ambiguous),
            ("/?api_key=%20abc",               Ambiguous),
            ("/?api_key=abc%0a",               Ambiguous),
            ("/?api_key=abc%2C",               Ambiguous),
            ("/?api_key=%2561bc",              Ambiguous),
            ("/?api_key=%ff",                  Ambiguous),
        ];
        for (path, expected) in cases {
            assert_eq!(extractor.subject(&FakeRequest::get(path)), expected.subject(), "{path}");
        }
        let long = |count| format!("/?api_key={}", "%61".repeat(count));
        let longest = [b'a'; 65_536];
        assert_eq!(extractor.subject(&FakeRequest::get(&long(65_536))), Key(&longest).subject());
        assert_eq!(extractor.subject(&FakeRequest::get(&long(65_537))), Err(AmbiguousKey));
    }

    #[test]
    #[rustfmt::skip]
    fn key_in_a_cookie() {
        let extractor = ApiKey::cookie("session", secret());
        let cases: [(&[&[u8]], Expected<'_>); 18] = [
            (&[b"session=abc"],                     Key(b"abc")),
            (&[b"a=1; session=abc;b=2"],            Key(b"abc")),
            (&[b"a=\"1,2\"; session=abc"],          Key(b"abc")),
            // HTTP/2 may split a header with several cookies.
            (&[b"a=1", b"session=abc"],             Key(b"abc")),
            (&[b"session=\"abc\""],                 Key(b"abc")),
            (&[b"session=%61bc"],                   Key(b"abc")),
            (&[b"session="],                        Missing),
            (&[b"session=\"\"; session2=abc"],      Missing),
            (&[b"a=session"],                       Missing),
            (&[b"session=abc; session=abc"],        Ambiguous),
            (&[b"session=abc", b"session=def"],     Ambiguous),
            (&[b"session=; Session=abc"],           Ambiguous),
            (&[b"Session=abc"],                     Ambiguous),
            (&[b"a=1, session=abc"],                Ambiguous),
            (&[b"session=abc, a=1"],                Ambiguous),
            (&[b"session=\"abc"],                   Ambiguous),
            (&[b"session=a bc"],                    Ambiguous),
            (&[b"session=\xff"],                    Ambiguous),
        ];
        for (lines, expected) in cases {
            let request = lines
                .iter()
                .fold(FakeRequest::get("/"), |request, line| request.header("cookie", line));
            let shown = lines.concat().escape_ascii().to_string();
            assert_eq!(extractor.subject(&request), expected.subject(), "{shown}");
        }
    }

    #[test]
    fn key_does_not_occur_in_debug_output() {
        let extractor = ApiKey::header("x-api-key", secret()).unwrap();
        let request = FakeRequest::get("/").header("x-api-key", KEY.as_bytes());
        let subject = extractor.subject(&request).unwrap().unwrap();
        let shown = format!("{extractor:?} {subject:?} {} {}", subject.id(), subject.redacted());
        assert!(!shown.contains(KEY) && !shown.contains("a secret"), "{shown}");
    }
}
