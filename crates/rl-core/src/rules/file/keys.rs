//! Key extractors as text: `address`, `header:x-api-key`, `identified+route`.

use std::sync::Arc;

use super::known_keys::KnownKeys;
use super::scalars::FromText;
use super::variables::clipped;
use crate::client_ip::{ClientIp, header_name};
use crate::key::{
    ApiKey, ClientAddress, Header, Identified, KeyExtractor, KeySecret, Method, Route,
};
use crate::model::Realm;

/// The subjects that a rule counts, as a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyText {
    Address,
    /// A key in the file of keys.
    Key,
    Identified,
    Route,
    Method,
    Header(String),
    Bearer,
    Query(String),
    Cookie(String),
    TrustedHeader(String),
    /// An extractor that the service has registered under this name.
    Registered(String),
    /// Several subjects, which are counted as one.
    Together(Vec<Self>),
}

impl FromText for KeyText {
    const EXPECTED: &'static str = "address, key, identified, route, method, bearer, header:NAME, query:NAME, cookie:NAME, \
         trusted-header:NAME, an extractor that the service registers, or several of them joined by +";

    fn from_text(text: &str) -> Result<Self, String> {
        let mut parts = text.split('+').map(|part| Self::one(part.trim()));
        let all: Option<Vec<Self>> = parts.by_ref().collect();
        let mut all = all.ok_or_else(|| unknown(text, REGISTERED))?;
        Ok(if all.len() == 1 { all.swap_remove(0) } else { Self::Together(all) })
    }
}

/// The text of [`KeyText::Key`].
const KNOWN_KEY: &str = "key";

/// The words of [`KeyText::EXPECTED`] for the extractors of the service.
const REGISTERED: &str = "an extractor that the service registers";

/// Returns the error for a text that names no extractor. `registered` describes the extractors of
/// the service.
fn unknown(text: &str, registered: &str) -> String {
    let text = clipped(text);
    format!("per {text:?}: expected {}", KeyText::EXPECTED.replace(REGISTERED, registered))
}

/// The values that the built-in extractors need, and the extractors that the service has
/// registered.
pub(super) struct Extractors<'a> {
    pub(super) client_ip: &'a ClientIp,
    pub(super) secret: &'a KeySecret,
    pub(super) registered: &'a [(String, Arc<dyn KeyExtractor>)],
    pub(super) known_keys: Option<&'a Arc<KnownKeys>>,
}

impl Extractors<'_> {
    /// Returns the error for an extractor that the service has not registered.
    pub(super) fn unknown(&self, name: &str) -> String {
        if name == KNOWN_KEY {
            return format!("per {KNOWN_KEY:?}: expected `keys:` in the file, with known keys");
        }
        unknown(name, &names(self.registered).unwrap_or_else(|| REGISTERED.to_owned()))
    }
}

/// Returns the names of registered values in a list for an error; `None` if there are none.
pub(super) fn names<T>(registered: &[(String, T)]) -> Option<String> {
    let names: Vec<&str> = registered.iter().map(|(name, _)| &**name).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

impl KeyText {
    fn one(text: &str) -> Option<Self> {
        if let Some((kind, name)) = text.split_once(':') {
            let is_header = header_name(name).is_ok();
            return match kind {
                "header" if is_header => Some(Self::Header(name.to_owned())),
                "trusted-header" if is_header => Some(Self::TrustedHeader(name.to_owned())),
                "query" if !name.is_empty() => Some(Self::Query(name.to_owned())),
                "cookie" if !name.is_empty() => Some(Self::Cookie(name.to_owned())),
                _ => None,
            };
        }
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b);
        match text {
            "address" => Some(Self::Address),
            "key" => Some(Self::Key),
            "identified" => Some(Self::Identified),
            "route" => Some(Self::Route),
            "method" => Some(Self::Method),
            "bearer" => Some(Self::Bearer),
            "" => None,
            name => name.bytes().all(fits).then(|| Self::Registered(name.to_owned())),
        }
    }

    /// Returns the extractor of a credential that clients send; `None` for other subjects.
    pub(super) fn credential(&self, secret: &KeySecret) -> Option<ApiKey> {
        match self {
            Self::Header(name) => ApiKey::header(name, secret.clone()).ok(),
            Self::Bearer => Some(ApiKey::bearer(secret.clone())),
            Self::Query(name) => Some(ApiKey::query(name, secret.clone())),
            Self::Cookie(name) => Some(ApiKey::cookie(name, secret.clone())),
            _ => None,
        }
    }

    /// Returns the names of the credentials of which clients can invent values, and which are
    /// hashed with the secret.
    pub(super) fn invented(&self) -> Vec<String> {
        match self {
            Self::Header(name) => vec![name.clone()],
            Self::Bearer => vec!["the bearer token".to_owned()],
            Self::Query(name) => vec![format!("the parameter {name}")],
            Self::Cookie(name) => vec![format!("the cookie {name}")],
            Self::Together(parts) => parts.iter().flat_map(Self::invented).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the extractor.
    ///
    /// # Errors
    ///
    /// Returns the name of an extractor that the service has not registered.
    pub(super) fn extractor(
        &self,
        extractors: &Extractors<'_>,
    ) -> Result<Arc<dyn KeyExtractor>, String> {
        let secret = extractors.secret;
        if let Some(key) = self.credential(secret) {
            return Ok(Arc::new(key));
        }
        Ok(match self {
            Self::Key => match extractors.known_keys {
                Some(keys) => Arc::clone(keys) as Arc<dyn KeyExtractor>,
                None => return Err(KNOWN_KEY.to_owned()),
            },
            Self::Address => Arc::new(ClientAddress::new(extractors.client_ip.clone())),
            Self::Identified => Arc::new(Identified),
            Self::Route => Arc::new(Route),
            Self::Method => Arc::new(Method),
            Self::Header(name) | Self::Query(name) | Self::Cookie(name) => {
                return Err(name.clone());
            }
            Self::Bearer => return Err("bearer".to_owned()),
            Self::TrustedHeader(name) => {
                Arc::new(Header::new(name, Realm::Consumer).map_err(|_| name.clone())?)
            }
            Self::Registered(name) => {
                let mut known = extractors.registered.iter();
                let found = known.find(|(known, _)| known == name);
                found.map(|(_, key)| Arc::clone(key)).ok_or_else(|| name.clone())?
            }
            Self::Together(parts) => {
                let parts = parts.iter().map(|part| part.extractor(extractors));
                together(parts.collect::<Result<_, _>>()?)
            }
        })
    }
}

/// A place of a request in which clients send keys.
#[derive(Clone, Debug)]
pub(super) struct CredentialText(pub(super) KeyText);

impl FromText for CredentialText {
    const EXPECTED: &'static str = "header:NAME, bearer, query:NAME or cookie:NAME";

    fn from_text(text: &str) -> Result<Self, String> {
        match KeyText::from_text(text) {
            Ok(
                key @ (KeyText::Header(_)
                | KeyText::Bearer
                | KeyText::Query(_)
                | KeyText::Cookie(_)),
            ) => Ok(Self(key)),
            _ => Err(format!("from {:?}: expected {}", clipped(text), Self::EXPECTED)),
        }
    }
}

/// Returns an extractor that combines the subjects of all `keys` into one subject.
fn together(keys: Vec<Arc<dyn KeyExtractor>>) -> Arc<dyn KeyExtractor> {
    let pair = |first: Arc<dyn KeyExtractor>, second| -> Arc<dyn KeyExtractor> {
        Arc::new(first.and(second))
    };
    keys.into_iter().reduce(pair).unwrap_or_else(|| Arc::new(crate::key::Constant))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extractors_are_read_from_text() {
        for (text, expected) in [
            ("address", KeyText::Address),
            ("header:X-Api-Key", KeyText::Header("X-Api-Key".to_owned())),
            ("login-name", KeyText::Registered("login-name".to_owned())),
            ("identified + route", KeyText::Together(vec![KeyText::Identified, KeyText::Route])),
        ] {
            assert_eq!(KeyText::from_text(text), Ok(expected), "{text}");
        }
        for text in ["", "header:", "header:a b", "headers:a", "Address", "a+", "a b"] {
            let error = KeyText::from_text(text).unwrap_err();
            assert!(error.starts_with(&format!("per {text:?}: expected address, ")), "{error}");
        }
    }
}
