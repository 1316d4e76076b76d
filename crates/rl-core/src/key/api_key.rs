use std::borrow::Cow;

use super::{AmbiguousKey, InvalidHeaderName, KeyExtractor, KeySecret, RequestInfo, credential};
use crate::client_ip::header_name;
use crate::model::{Realm, Subject};

/// Counts by API key or token, as a keyed hash.
///
/// A key is one word of visible ASCII without a comma, of 1 to 65536 bytes. The same key is the same
/// subject wherever it stands. A request in which it is missing or empty has no key.
///
/// A request is [ambiguous](super::AmbiguousKey), and rejected, because services read it differently, if
///
/// * the key stands there twice, is longer, or holds other bytes;
/// * the name of the parameter or cookie differs in upper and lower case;
/// * a parameter holds a raw `+` or a semicolon;
/// * one `Authorization` line holds several credentials.
///
/// Keys are not verified: see the [module](super#security), and [`known`](super::KeyExtractor::known) for
/// services that know their keys.
///
/// A service that accepts keys in two places must ask for them in the order in which it reads them itself.
/// Otherwise a client adds an invented key in the place that is asked first, and counts under that.
///
/// # Examples
///
/// ```
/// use rl_core::key::{ApiKey, KeyExtractor, KeySecret};
///
/// let secret = KeySecret::new(b"read me from the configuration")?;
/// let key = ApiKey::header("x-api-key", secret.clone())?.or(ApiKey::bearer(secret));
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
    Authorization(Cow<'static, str>),
    Query(Box<str>),
    Cookie(Box<str>),
}

impl ApiKey {
    /// Reads the header called `name`, in any case. For `Authorization` use
    /// [`bearer`](Self::bearer) or [`authorization`](Self::authorization), which read the scheme.
    ///
    /// # Errors
    ///
    /// Returns an error if no header can have that name.
    pub fn header(name: &str, secret: KeySecret) -> Result<Self, InvalidHeaderName> {
        Ok(Self { place: Place::Header(header_name(name)?), secret })
    }

    /// Reads the token in `Authorization: Bearer …`.
    #[must_use]
    pub const fn bearer(secret: KeySecret) -> Self {
        Self { place: Place::Authorization(Cow::Borrowed("Bearer")), secret }
    }

    /// Reads the token in `Authorization: SCHEME …`, with the scheme in any case. A request with another
    /// scheme has no key.
    #[must_use]
    pub fn authorization(scheme: &str, secret: KeySecret) -> Self {
        Self { place: Place::Authorization(scheme.to_owned().into()), secret }
    }

    /// Reads the query parameter called `name`, as forms are read: `%61` is `a`.
    #[must_use]
    pub fn query(name: &str, secret: KeySecret) -> Self {
        Self { place: Place::Query(name.into()), secret }
    }

    /// Reads the cookie called `name`, without quotes and with `%61` read as `a`.
    #[must_use]
    pub fn cookie(name: &str, secret: KeySecret) -> Self {
        Self { place: Place::Cookie(name.into()), secret }
    }
}

impl KeyExtractor for ApiKey {
    fn subject<R: RequestInfo>(&self, request: &R) -> Result<Option<Subject>, AmbiguousKey> {
        let request: &dyn RequestInfo = request;
        let key = match &self.place {
            Place::Header(name) => credential::header(request, name)?.map(Cow::Borrowed),
            Place::Authorization(scheme) => credential::token(request, scheme)?.map(Cow::Borrowed),
            Place::Query(name) => credential::parameter(request, name)?,
            Place::Cookie(name) => credential::cookie(request, name)?,
        };
        Ok(key.map(|key| self.secret.subject(Realm::Key, &key)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake_request::FakeRequest;
    use super::*;

    const KEY: &str = "sk_live_51H8xQ2eZvKYlo2C";

    /// The expected reading of a request: this key, none, or an ambiguous one.
    #[derive(Clone, Copy)]
    enum Says<'a> {
        Key(&'a [u8]),
        Nothing,
        TwoThings,
    }
    use Says::{Key, Nothing, TwoThings};

    impl Says<'_> {
        fn subject(self) -> Result<Option<Subject>, AmbiguousKey> {
            match self {
                Key(key) => Ok(Some(secret().subject(Realm::Key, key))),
                Nothing => Ok(None),
                TwoThings => Err(AmbiguousKey),
            }
        }
    }

    fn secret() -> KeySecret {
        KeySecret::new(b"a secret for tests").unwrap()
    }

    #[test]
    #[rustfmt::skip]
    fn key_in_a_header() {
        let who = ApiKey::header("X-API-Key", secret()).unwrap();
        let longest = [b'k'; 65_536];
        let longer = [b'k'; 65_537];
        let cases: [(&[&[u8]], Says<'_>); 17] = [
            (&[],                    Nothing),
            (&[KEY.as_bytes()],      Key(KEY.as_bytes())),
            (&[b"{a}:b\"%0d\\"],      Key(b"{a}:b\"%0d\\")),
            (&[&longest],            Key(&longest)),
            (&[b""],                 Nothing),
            (&[b"a", b"a"],          TwoThings),
            (&[b"a", b"b"],          TwoThings),
            (&[b"a", b""],           TwoThings),
            (&[b"", b""],            TwoThings),
            (&[b"a, b"],             TwoThings),
            (&[b"a,"],               TwoThings),
            (&[b" a"],               TwoThings),
            (&[b"a\t"],              TwoThings),
            (&[b"a b"],              TwoThings),
            (&[b"a\xa0"],            TwoThings),
            (&[b" "],                TwoThings),
            (&[&longer],             TwoThings),
        ];
        for (lines, says) in cases {
            let request = lines.iter().fold(FakeRequest::get("/"), |request, line| {
                request.header("x-api-key", line)
            });
            let shown = lines.first().map(|line| line[..line.len().min(40)].escape_ascii().to_string());
            assert_eq!(who.subject(&request), says.subject(), "{shown:?}");
        }
        assert!(ApiKey::header("x api key", secret()).is_err());
    }

    #[test]
    #[rustfmt::skip]
    fn key_in_a_token() {
        let who = ApiKey::bearer(secret());
        let cases: [(&[u8], Says<'_>); 19] = [
            (b"Bearer token",            Key(b"token")),
            (b"bearer token",            Key(b"token")),
            (b"BEARER   token",          Key(b"token")),
            (b"Bearer",                  Nothing),
            (b"Bearertoken",             Nothing),
            (b"Bearer-token x",          Nothing),
            (b"Basic token",             Nothing),
            (b"Digest a=\"b\", c=\"d\"", Nothing),
            (b"token",                   Nothing),
            (b"",                        Nothing),
            (b"Bearer ",                 TwoThings),
            (b"Bearer token ",           TwoThings),
            (b" Bearer token",           TwoThings),
            (b"Bearer\ttoken",           TwoThings),
            (b"Bearer\xa0token",         TwoThings),
            (b"Bearer:token",            TwoThings),
            (b"Bearer token x",          TwoThings),
            (b"Bearer token, Basic x",   TwoThings),
            (b"Basic x,bearer token",    TwoThings),
        ];
        for (value, says) in cases {
            let request = FakeRequest::get("/").header("authorization", value);
            assert_eq!(who.subject(&request), says.subject(), "{}", value.escape_ascii());
        }
        let twice = FakeRequest::get("/")
            .header("authorization", b"Bearer token")
            .header("authorization", b"Basic x");
        assert_eq!(who.subject(&twice), Err(AmbiguousKey));
        let other = ApiKey::authorization("ApiKey", secret());
        let request = FakeRequest::get("/").header("authorization", b"apikey token");
        assert_eq!((other.subject(&request), who.subject(&request)), (Key(b"token").subject(), Ok(None)));
    }

    #[test]
    #[rustfmt::skip]
    fn key_in_a_query_parameter() {
        let who = ApiKey::query("api_key", secret());
        let cases: [(&str, Says<'_>); 26] = [
            ("/?api_key=abc",                  Key(b"abc")),
            ("/?x=1&api_key=%61b%63&y",        Key(b"abc")),
            ("/?api%5Fkey=abc",                Key(b"abc")),
            ("/?api_key=%2Ba",                 Key(b"+a")),
            ("/?api_key=a=b",                  Key(b"a=b")),
            ("/?x=1;y=2&api_key=abc",          Key(b"abc")),
            ("/?api_key=",                     Nothing),
            ("/?api_key",                      Nothing),
            ("/?api_keys=abc",                 Nothing),
            ("/?x=api_key=abc",                Nothing),
            ("/",                              Nothing),
            ("/?api_key=abc&api_key=abc",      TwoThings),
            ("/?api_key=abc&api%5fkey=def",    TwoThings),
            ("/?api_key=abc&api_key=",         TwoThings),
            ("/?api_key=&API_KEY=abc",         TwoThings),
            ("/?API_KEY=abc",                  TwoThings),
            ("/?+api_key=abc",                 TwoThings),
            ("/?x=1;api_key=abc",              TwoThings),
            ("/?api_key;x=abc",                TwoThings),
            ("/?api_key=abc;x=1",              TwoThings),
            ("/?api_key=a+b",                  TwoThings),
            ("/?api_key=%20abc",               TwoThings),
            ("/?api_key=abc%0a",               TwoThings),
            ("/?api_key=abc%2C",               TwoThings),
            ("/?api_key=%2561bc",              TwoThings),
            ("/?api_key=%ff",                  TwoThings),
        ];
        for (path, says) in cases {
            assert_eq!(who.subject(&FakeRequest::get(path)), says.subject(), "{path}");
        }
        let long = |count| format!("/?api_key={}", "%61".repeat(count));
        let longest = [b'a'; 65_536];
        assert_eq!(who.subject(&FakeRequest::get(&long(65_536))), Key(&longest).subject());
        assert_eq!(who.subject(&FakeRequest::get(&long(65_537))), Err(AmbiguousKey));
    }

    #[test]
    #[rustfmt::skip]
    fn key_in_a_cookie() {
        let who = ApiKey::cookie("session", secret());
        let cases: [(&[&[u8]], Says<'_>); 18] = [
            (&[b"session=abc"],                     Key(b"abc")),
            (&[b"a=1; session=abc;b=2"],            Key(b"abc")),
            (&[b"a=\"1,2\"; session=abc"],          Key(b"abc")),
            // HTTP/2 may split the header between cookies.
            (&[b"a=1", b"session=abc"],             Key(b"abc")),
            (&[b"session=\"abc\""],                 Key(b"abc")),
            (&[b"session=%61bc"],                   Key(b"abc")),
            (&[b"session="],                        Nothing),
            (&[b"session=\"\"; session2=abc"],      Nothing),
            (&[b"a=session"],                       Nothing),
            (&[b"session=abc; session=abc"],        TwoThings),
            (&[b"session=abc", b"session=def"],     TwoThings),
            (&[b"session=; Session=abc"],           TwoThings),
            (&[b"Session=abc"],                     TwoThings),
            (&[b"a=1, session=abc"],                TwoThings),
            (&[b"session=abc, a=1"],                TwoThings),
            (&[b"session=\"abc"],                   TwoThings),
            (&[b"session=a bc"],                    TwoThings),
            (&[b"session=\xff"],                    TwoThings),
        ];
        for (lines, says) in cases {
            let request = lines
                .iter()
                .fold(FakeRequest::get("/"), |request, line| request.header("cookie", line));
            let shown = lines.concat().escape_ascii().to_string();
            assert_eq!(who.subject(&request), says.subject(), "{shown}");
        }
    }

    #[test]
    fn key_is_not_shown() {
        let who = ApiKey::header("x-api-key", secret()).unwrap();
        let request = FakeRequest::get("/").header("x-api-key", KEY.as_bytes());
        let subject = who.subject(&request).unwrap().unwrap();
        let shown = format!("{who:?} {subject:?} {} {}", subject.id(), subject.redacted());
        assert!(!shown.contains(KEY) && !shown.contains("a secret"), "{shown}");
    }
}
