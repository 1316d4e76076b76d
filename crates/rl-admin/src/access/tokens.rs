use std::fmt;

use axum::http::header;
use axum::http::request::Parts;
use rl_core::MaybeReady;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::actor::Actor;
use super::authorize::{Authorize, Authorized};
use super::role::{Role, Roles, UnknownRole};

/// The shortest accepted token, in bytes.
const MIN_LENGTH: usize = 20;

/// The largest number of applications of an actor.
const MAX_APPLICATIONS: usize = 1_000;

/// Authenticates actors by a token in `Authorization: Bearer …`.
///
/// Tokens are stored as SHA-256 digests. A token is compared with all digests in constant time.
///
/// # Examples
///
/// ```
/// use rl_admin::{BearerTokens, Role, Roles};
///
/// let tokens = BearerTokens::new().with("alice", "a-long-and-random-token", Roles::all())?;
///
/// // Compute the digest with `printf %s TOKEN | sha256sum`.
/// let tokens = BearerTokens::from_json(r#"[
///     { "name": "alice", "token": "a-long-and-random-token", "roles": ["CanReadCallLimits"] },
///     { "name": "bob",
///       "token_sha256": "f2c0bf1f3a0b5d6b4f8a6f1fd2f6a4f8f2c0bf1f3a0b5d6b4f8a6f1fd2f6a4f8",
///       "roles": ["CanGetRateLimits", "CanCreateRateLimits"] }
/// ]"#)?;
/// # Ok::<(), rl_admin::access::InvalidTokens>(())
/// ```
#[derive(Clone, Default)]
pub struct BearerTokens {
    known: Vec<([u8; 32], Actor)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    token: Option<String>,
    token_sha256: Option<String>,
    roles: Vec<String>,
    applications: Option<Vec<String>>,
}

impl BearerTokens {
    /// Creates an empty list, which accepts no token.
    #[must_use]
    pub const fn new() -> Self {
        Self { known: Vec::new() }
    }

    /// Adds an actor with this token.
    ///
    /// # Errors
    ///
    /// Returns an error if the token is shorter than 20 bytes, or if another actor has it.
    pub fn with(self, name: &str, token: &str, roles: Roles) -> Result<Self, InvalidTokens> {
        check_length(name, token)?;
        self.with_actor(Actor::new(name, roles), digest(token))
    }

    fn with_actor(mut self, actor: Actor, digest: [u8; 32]) -> Result<Self, InvalidTokens> {
        let name = actor.name();
        let fits = (1..=250).contains(&name.len()) && !name.chars().any(char::is_control);
        if !fits {
            return Err(InvalidTokens(format!(
                "name {name:?}: expected 1 to 250 bytes without control characters"
            )));
        }
        if let Some((_, other)) = self.known.iter().find(|(known, _)| *known == digest) {
            let other = other.name();
            return Err(InvalidTokens(format!("{name:?} and {other:?} have the same token")));
        }
        // A session stores this hash of the digest, so that it ends with this token, also if
        // another token of the same actor replaces it.
        let credential: [u8; 32] = Sha256::digest(digest).into();
        let actor = actor.with_credential(&format!("token:{}", hex(&credential)));
        self.known.push((digest, actor));
        Ok(self)
    }

    /// Parses a JSON list of objects with `name`, `token` or `token_sha256`, and `roles`.
    ///
    /// The field [`applications`](Actor::of_applications) is optional.
    ///
    /// # Errors
    ///
    /// Returns an error that names the invalid entry, but contains no token.
    pub fn from_json(json: &str) -> Result<Self, InvalidTokens> {
        let entries: Vec<Entry> = serde_json::from_str(json).map_err(|error| {
            // The text of the error is omitted, because it may quote a token.
            InvalidTokens(format!(
                "line {} column {}: expected a list such as [{{\"name\": \"alice\", \"token\": \"…\", \
                 \"roles\": [\"CanReadCallLimits\"]}}]",
                error.line(),
                error.column()
            ))
        })?;
        entries.into_iter().try_fold(Self::new(), |tokens, entry| {
            let Entry { name, token, token_sha256, roles, applications } = entry;
            let roles: Result<Roles, UnknownRole> =
                roles.iter().map(|role| role.parse::<Role>()).collect();
            let roles = roles.map_err(|error| InvalidTokens(format!("{name:?}: {error}")))?;
            let actor = Actor::new(&name, roles);
            let actor = match applications {
                Some(applications) => {
                    check_applications(&name, &applications)?;
                    actor.of_applications(applications)
                }
                None => actor,
            };
            match (token, token_sha256) {
                (Some(token), None) => {
                    check_length(&name, &token)?;
                    tokens.with_actor(actor, digest(&token))
                }
                (None, Some(hex)) => {
                    let digest = from_hex(&hex).ok_or_else(|| {
                        InvalidTokens(format!(
                            "the token_sha256 of {name:?}: expected 64 hexadecimal digits"
                        ))
                    })?;
                    tokens.with_actor(actor, digest)
                }
                _ => Err(InvalidTokens(format!(
                    "{name:?}: expected one of \"token\" and \"token_sha256\""
                ))),
            }
        })
    }

    /// Returns the names of the actors.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.known.iter().map(|(_, actor)| actor.name())
    }

    /// Returns whether there are no tokens. Then no request is authenticated by a token.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Returns the actor with this token. The search takes the same time for every token.
    fn find(&self, token: &str) -> Option<&Actor> {
        let given = digest(token);
        // The index of the matching token plus one; 0 means that no token was found.
        let mut found = 0_u32;
        for (place, (known, _)) in (1..).zip(&self.known) {
            let is_equal: Choice = known.ct_eq(&given);
            found.conditional_assign(&place, is_equal);
        }
        let place = usize::try_from(found).ok()?.checked_sub(1)?;
        self.known.get(place).map(|(_, actor)| actor)
    }
}

fn check_length(name: &str, token: &str) -> Result<(), InvalidTokens> {
    if token.len() >= MIN_LENGTH {
        return Ok(());
    }
    Err(InvalidTokens(format!("the token of {name:?}: expected {MIN_LENGTH} random bytes or more")))
}

/// Checks the applications of an actor, or of an entry of another list.
pub(super) fn check_applications(name: &str, applications: &[String]) -> Result<(), InvalidTokens> {
    if applications.is_empty() || applications.len() > MAX_APPLICATIONS {
        let count = applications.len();
        return Err(InvalidTokens(format!(
            "{name:?} has {count} applications: expected 1 to {MAX_APPLICATIONS}, or no field \
             \"applications\""
        )));
    }
    let fits = |app: &String| (1..=250).contains(&app.len()) && !app.chars().any(char::is_control);
    let Some(wrong) = applications.iter().find(|app| !fits(app)) else { return Ok(()) };
    let wrong: String = wrong.chars().take(80).collect();
    Err(InvalidTokens(format!(
        "application {wrong:?} of {name:?}: expected 1 to 250 bytes without control characters"
    )))
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, place) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[place..place + 2], 16).ok()?;
    }
    Some(bytes)
}

impl Authorize for BearerTokens {
    fn authorize(&self, request: &Parts) -> MaybeReady<Authorized> {
        let mut lines = request.headers.get_all(header::AUTHORIZATION).iter();
        let token = match (lines.next(), lines.next()) {
            (Some(line), None) => line.to_str().ok().and_then(bearer),
            _ => None,
        };
        MaybeReady::ready(match token.map(|token| self.find(token)) {
            Some(Some(actor)) => Authorized::As(actor.clone()),
            Some(None) => Authorized::Wrong,
            None => Authorized::Unknown,
        })
    }

    fn still_accepts(&self, actor: &Actor) -> Option<bool> {
        Some(self.known.iter().any(|(_, known)| known == actor))
    }
}

fn bearer(line: &str) -> Option<&str> {
    let (scheme, token) = line.split_once(' ')?;
    scheme.eq_ignore_ascii_case("Bearer").then(|| token.trim_matches(' '))
}

/// Omits tokens and digests.
impl fmt::Debug for BearerTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.known.iter().map(|(_, actor)| actor)).finish()
    }
}

/// The error for an invalid list of tokens.
#[derive(Clone, PartialEq, Eq)]
pub struct InvalidTokens(pub(super) String);

rl_core::debug_as_display!(InvalidTokens);

impl fmt::Display for InvalidTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidTokens {}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "d7de2ea86c6ca7c7a2a0ba25d3ea8ba3ea8ba3d7de2ea86c6ca7c7a2a0ba25d3";

    fn actor<'a>(tokens: &'a BearerTokens, header: &str) -> Option<&'a str> {
        bearer(header).and_then(|token| tokens.find(token)).map(Actor::name)
    }

    #[test]
    fn a_token_authenticates_its_actor() {
        let tokens = BearerTokens::new().with("alice", "token-of-alice-the-first", Roles::all());
        let tokens = tokens.unwrap().with("bob", "token-of-bob-the-second", Roles::NONE).unwrap();
        assert_eq!(actor(&tokens, "Bearer token-of-alice-the-first"), Some("alice"));
        assert_eq!(actor(&tokens, "bearer  token-of-bob-the-second"), Some("bob"));
        for header in [
            "",
            "Bearer",
            "Bearer ",
            "token-of-alice-the-first",
            "Basic token-of-alice-the-first",
            "Bearer token-of-alice-the-firs",
            "Bearer token-of-alice-the-first2",
            "Bearer TOKEN-OF-ALICE-THE-FIRST",
        ] {
            assert_eq!(actor(&tokens, header), None, "{header}");
        }
        assert_eq!(actor(&BearerTokens::new(), "Bearer "), None);
        let shown = format!("{tokens:?}");
        assert!(shown.contains("alice") && !shown.contains("token-of"), "{shown}");
    }

    #[test]
    fn a_digest_accepts_its_token() {
        let digest = hex(&digest("token-of-alice-the-first"));
        let json = format!(r#"[{{"name": "alice", "token_sha256": "{digest}", "roles": []}}]"#);
        let tokens = BearerTokens::from_json(&json).unwrap();
        assert_eq!(actor(&tokens, "Bearer token-of-alice-the-first"), Some("alice"));
    }

    #[test]
    fn errors_of_a_list_contain_no_token() {
        let two = |a: &str, b: &str| format!("[{a}, {b}]");
        let alice = r#"{"name": "alice", "token": "swordfish-swordfish-1", "roles": []}"#;
        #[rustfmt::skip]
        let table = [
            ("", "line 1 column 0: expected a list"),
            (r#"[{"name": "alice", "token": swordfish}]"#, "line 1 column 29: expected a list"),
            (r#"[{"name": "alice", "token": "swordfish", "roles": []}]"#, "\"alice\": expected 20 random bytes"),
            (r#"[{"name": "", "token": "swordfish-swordfish-1", "roles": []}]"#, "name \"\": expected 1 to 250"),
            (r#"[{"name": "alice", "roles": []}]"#, "\"alice\": expected one of \"token\" and"),
            (r#"[{"name": "alice", "token_sha256": "swordfish", "roles": []}]"#, "expected 64 hexadecimal digits"),
            (r#"[{"name": "alice", "token": "swordfish-swordfish-1", "roles": ["Admin"]}]"#, "role \"Admin\": expected one of"),
            (r#"[{"name": "alice", "token": "swordfish-swordfish-1", "role": []}]"#, "expected a list such as"),
            (r#"[{"name": "a", "token": "swordfish-swordfish-1", "roles": [], "applications": []}]"#, "\"a\" has 0 applications: expected 1 to 1000"),
            (r#"[{"name": "a", "token": "swordfish-swordfish-1", "roles": [], "applications": ["b", ""]}]"#, "application \"\" of \"a\": expected 1 to 250"),
            (&two(alice, &alice.replace("alice", "bob")), "\"bob\" and \"alice\" have the same token"),
        ];
        for (json, expected) in table {
            let error = BearerTokens::from_json(json).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("swordfish"), "{error}");
        }
        assert!(from_hex(DIGEST).is_some() && from_hex(&DIGEST.replace('d', "x")).is_none());
    }
}
