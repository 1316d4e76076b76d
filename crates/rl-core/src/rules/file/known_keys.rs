//! The keys that a service knows, from a file with their hashes.

use std::collections::HashMap;
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use serde_saphyr::{Error, Location, Spanned};
use sha2::{Digest, Sha256};

use super::error::{FileFailure, RulesFileError};
use super::scalars::Secret;
use super::variables::clipped;
use super::yaml::{from_yaml, message};
use crate::key::{AmbiguousKey, ApiKey, CountedAs, KeyExtractor, RequestInfo, Tier};
use crate::model::{Realm, Subject};

/// The maximum length of the name of a key, in characters.
const MAX_NAME: usize = 64;

/// Finds the keys that a service knows. A request with any other key has no key.
///
/// The subject of a key is its name, so a key can be replaced by another one without a loss of
/// counts, and instances need no common secret.
pub(super) struct KnownKeys {
    from: Vec<ApiKey>,
    /// The subjects of the keys, by hash. The duration of a look-up reveals nothing about a key,
    /// because a client cannot choose the hash of its key.
    by_sha256: HashMap<Hash, Subject>,
    by_hmac: HashMap<Hash, Subject>,
    hmac_key: Option<Secret>,
    /// The subjects of all keys, with their tiers.
    tiers: HashMap<Subject, Option<Tier>>,
}

type Hash = [u8; 32];

/// The values of a rule file that a file of keys refers to.
pub(super) struct KeySettings<'a> {
    /// The places in which requests have keys. The first key that is present is looked up.
    pub(super) from: Vec<ApiKey>,
    /// The secret of the rule file, if it has one.
    pub(super) secret: Option<&'a Secret>,
    /// The tiers of all rules.
    pub(super) tiers: Vec<&'a str>,
}

/// A key in the file. All values are texts with their places.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyEntry {
    #[serde(default)]
    sha256: Option<Spanned<String>>,
    #[serde(default)]
    hmac: Option<Spanned<String>>,
    name: Spanned<String>,
    #[serde(default)]
    tier: Option<Spanned<String>>,
}

/// The structure of the file, for errors.
const EXPECTED: &str = "expected a list of { sha256: HEX, name: NAME, tier: TIER }, in which hmac \
                        may replace sha256, and tier may be missing";

/// The error for a value that is not a hash, and may therefore be the key itself.
const HASH: &str = "expected 64 hexadecimal digits, and never the key itself";

impl KnownKeys {
    /// Reads the file of keys whose path errors show as `path`.
    ///
    /// # Errors
    ///
    /// Returns an error for the first value that is not valid. The error contains no key, and no
    /// text that may be a key by mistake.
    pub(super) fn read(
        path: &Path,
        bytes: &[u8],
        settings: KeySettings<'_>,
    ) -> Result<Self, RulesFileError> {
        let fail = |place: Option<Location>, reason: String| {
            let number = |number: u64| usize::try_from(number).ok();
            let place = place.and_then(|at| number(at.line()).zip(number(at.column())));
            RulesFileError::new(path, place, FileFailure::Text(reason))
        };
        let is_list = |extension: &str| ["yaml", "yml", "json"].contains(&extension);
        if !path.extension().and_then(|text| text.to_str()).is_some_and(is_list) {
            let reason = "the name of the file of keys: expected .yaml, .yml or .json";
            return Err(fail(None, reason.to_owned()));
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|_| fail(None, "a byte that is not UTF-8".to_owned()))?;
        // The message of the parser may contain a key that was written in the clear.
        let list: Vec<KeyEntry> =
            from_yaml(text).map_err(|error| match error.without_snippet() {
                // This message contains numbers only.
                Error::Budget { .. } => fail(error.location(), message(&error)),
                _ => fail(error.location(), format!("{EXPECTED}; the file has hashes, never keys")),
            })?;
        let KeySettings { from, secret, tiers } = settings;
        let mut keys = Self {
            from,
            by_sha256: HashMap::new(),
            by_hmac: HashMap::new(),
            hmac_key: secret.cloned(),
            tiers: HashMap::new(),
        };
        let mut lines = HashMap::new();
        for KeyEntry { sha256, hmac, name, tier } in list {
            let at = Some(name.referenced);
            let is_valid = (1..=MAX_NAME).contains(&name.value.chars().count())
                && !name.value.contains(char::is_control);
            if !is_valid {
                let reason = format!(
                    "name: expected 1 to {MAX_NAME} characters, none of them a control character"
                );
                return Err(fail(at, reason));
            }
            let subject = Subject::new(Realm::Key, &name.value);
            if let Some(line) = lines.insert(subject.clone(), name.referenced.line()) {
                return Err(fail(at, format!("name: the key in line {line} has the same name")));
            }
            let (hash, by_hash, hint) = match (sha256, hmac) {
                (Some(hash), None) => (hash, &mut keys.by_sha256, "sha256: "),
                (None, Some(hash)) if keys.hmac_key.is_some() => {
                    (hash, &mut keys.by_hmac, "hmac: ")
                }
                (None, Some(hash)) => {
                    let reason = "hmac: expected `secret:` in the rule file, the key of the HMAC";
                    return Err(fail(Some(hash.referenced), reason.to_owned()));
                }
                _ => {
                    let reason = "expected one hash for each key: sha256 or hmac";
                    return Err(fail(at, reason.to_owned()));
                }
            };
            let place = Some(hash.referenced);
            let Some(digits) = parse_hash(&hash.value) else {
                let command = match hint {
                    "sha256: " => "printf %s KEY | sha256sum",
                    _ => "printf %s KEY | openssl dgst -sha256 -hmac SECRET",
                };
                return Err(fail(place, format!("{hint}{HASH}: {command}")));
            };
            if by_hash.insert(digits, subject.clone()).is_some() {
                return Err(fail(place, format!("{hint}an earlier key has the same hash")));
            }
            if let Some(tier) = &tier
                && !tiers.contains(&&*tier.value)
            {
                let text = clipped(&tier.value);
                let known = match &*tiers {
                    [] => "no rule has tiers".to_owned(),
                    tiers => format!("expected a tier of a rule: {}", tiers.join(", ")),
                };
                return Err(fail(Some(tier.referenced), format!("tier {text:?}: {known}")));
            }
            keys.tiers.insert(subject, tier.map(|tier| Tier::new(&tier.value)));
        }
        Ok(keys)
    }

    /// Returns the tier of a known key, or of a pair of subjects of which it is the first.
    pub(super) fn tier(&self, subject: &Subject) -> Option<Tier> {
        self.tiers.get(subject.owner())?.clone()
    }

    /// Returns the subject of a key, if it is known.
    fn find(&self, key: &[u8]) -> Option<&Subject> {
        let by_sha256 = || self.by_sha256.get(&<Hash>::from(Sha256::digest(key)));
        let by_hmac = || {
            let secret = self.hmac_key.as_ref()?.text.as_bytes();
            let mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
            self.by_hmac.get(&<Hash>::from(mac.chain_update(key).finalize().into_bytes()))
        };
        let found = if self.by_sha256.is_empty() { None } else { by_sha256() };
        found.or_else(|| if self.by_hmac.is_empty() { None } else { by_hmac() })
    }
}

impl KeyExtractor for KnownKeys {
    fn subject(&self, request: &dyn RequestInfo) -> Result<Option<Subject>, AmbiguousKey> {
        for from in &self.from {
            if let Some(key) = from.key(request)? {
                return Ok(self.find(&key).cloned());
            }
        }
        Ok(None)
    }

    fn counts(&self, subject: &Subject) -> CountedAs {
        if self.tiers.contains_key(subject) { CountedAs::Itself } else { CountedAs::Nothing }
    }
}

/// Returns the bytes of a hash in hexadecimal digits.
fn parse_hash(text: &str) -> Option<Hash> {
    let digits = text.as_bytes();
    let mut hash = Hash::default();
    if digits.len() != 2 * hash.len() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(hash)
}
