use std::fmt;
use std::net::Ipv4Addr;

use axum::http::Uri;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use crate::access::{Actor, ClaimGrants};

/// The provider that authenticates people, and the roles that it implies.
///
/// # Examples
///
/// ```
/// use rl_admin::oidc::Oidc;
///
/// let roles = r#"{
///     "limits-viewers": { "roles": ["CanReadCallLimits", "CanGetRateLimits"] },
///     "shop-team": { "roles": ["CanReadCallLimits", "CanGetRateLimits"], "applications": ["shop"] }
/// }"#;
/// let secret = "the secret of the client";
/// let oidc = Oidc::new("https://login.example.com", "rl-console", secret, roles)?.label("Example");
/// # Ok::<(), rl_admin::oidc::InvalidOidc>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Oidc {
    pub(super) issuer: String,
    pub(super) client_id: String,
    pub(super) client_secret: String,
    grants: ClaimGrants,
    /// A digest of the roles, as the settings have them.
    roles_digest: String,
    pub(super) claim: String,
    label: String,
}

impl Oidc {
    /// Creates the settings for a client of a provider, with its issuer and its secret.
    ///
    /// `roles` is a JSON object. For each value of the claim, it has an object with `roles`, and
    /// `applications` if these roles are only for [some](Actor::of_applications).
    ///
    /// # Errors
    ///
    /// Returns an error if the issuer is neither an `https://` URL nor, on the loopback interface,
    /// an `http://` URL, if the client has no id or secret, or if the roles are not valid.
    pub fn new(
        issuer: &str,
        client_id: &str,
        client_secret: &str,
        roles: &str,
    ) -> Result<Self, InvalidOidc> {
        let invalid = |part, reason: &str| Err(InvalidOidc { part, reason: reason.to_owned() });
        if !is_issuer(issuer) {
            let expected = "expected the issuer of the provider, such as \
                            https://login.example.com; http:// only on the loopback";
            return invalid(OidcPart::Issuer, expected);
        }
        if client_id.is_empty() {
            return invalid(OidcPart::ClientId, "expected the id of the client at the provider");
        }
        if client_secret.is_empty() {
            let expected = "expected the secret of the client at the provider";
            return invalid(OidcPart::ClientSecret, expected);
        }
        let grants = ClaimGrants::from_json(roles);
        let grants = grants
            .map_err(|error| InvalidOidc { part: OidcPart::Roles, reason: error.to_string() })?;
        Ok(Self {
            issuer: issuer.to_owned(),
            client_id: client_id.to_owned(),
            client_secret: client_secret.to_owned(),
            grants,
            roles_digest: BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(roles)),
            claim: "groups".to_owned(),
            label: "single sign-on".to_owned(),
        })
    }

    /// Sets the claim whose values select the roles: a text, or a list of texts. Defaults to
    /// `groups`. If the ID token lacks the claim, the user information of the provider is read.
    ///
    /// If the provider has a scope of the same name, it is requested.
    pub fn claim(mut self, claim: &str) -> Self {
        claim.clone_into(&mut self.claim);
        self
    }

    /// Sets the name of the provider on the button. Defaults to `single sign-on`.
    pub fn label(mut self, label: &str) -> Self {
        label.clone_into(&mut self.label);
        self
    }

    /// Returns the name of the provider on the button.
    pub(crate) fn name(&self) -> &str {
        &self.label
    }

    /// Returns the claim whose values select the roles.
    pub(crate) fn claim_name(&self) -> &str {
        &self.claim
    }

    /// Returns the secret of the client.
    pub(crate) fn secret(&self) -> &str {
        &self.client_secret
    }

    /// Returns whether the issuer in an answer, if there is one, is that of the provider.
    pub(crate) fn is_issuer(&self, issuer: Option<&str>) -> bool {
        issuer.is_none_or(|issuer| issuer == self.issuer)
    }

    /// Returns the credential of the sessions that people of this provider begin. It changes with
    /// the roles, so that earlier sessions end.
    pub(crate) fn credential(&self) -> String {
        let Self { issuer, client_id, claim, roles_digest, .. } = self;
        format!("oidc:{issuer} {client_id} {claim} {roles_digest}")
    }

    /// Returns the actor with this name and these values of the claim, if an entry has one of them.
    pub(crate) fn actor(&self, name: &str, values: &[String]) -> Option<Actor> {
        let actor = self.grants.actor(name, values)?;
        Some(actor.with_credential(&self.credential()))
    }
}

/// Omits the secret.
impl fmt::Debug for Oidc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Oidc")
            .field("issuer", &self.issuer)
            .field("client_id", &self.client_id)
            .field("claim", &self.claim)
            .finish_non_exhaustive()
    }
}

/// The part of the settings that is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OidcPart {
    Issuer,
    ClientId,
    ClientSecret,
    Roles,
}

/// The error for invalid settings of [`Oidc`]. It contains no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct InvalidOidc {
    part: OidcPart,
    reason: String,
}

impl InvalidOidc {
    pub(crate) const fn part(&self) -> OidcPart {
        self.part
    }
}

rl_core::debug_as_display!(InvalidOidc);

impl fmt::Display for InvalidOidc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for InvalidOidc {}

/// Returns whether a text can be an issuer.
fn is_issuer(issuer: &str) -> bool {
    let Ok(uri) = issuer.parse::<Uri>() else { return false };
    let host = uri.host().unwrap_or_default();
    let is_local = host == "localhost"
        || host == "[::1]"
        || host.parse().is_ok_and(|address: Ipv4Addr| address.is_loopback());
    let is_safe = match uri.scheme_str() {
        Some("https") => !host.is_empty(),
        Some("http") => is_local,
        _ => false,
    };
    is_safe && uri.query().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issuer_is_a_url_with_tls_except_on_the_loopback() {
        for issuer in [
            "https://login.example.com",
            "https://login.example.com/realms/a",
            "http://127.0.0.1:5000",
            "http://localhost:5000/",
            "http://[::1]:5000",
        ] {
            assert!(is_issuer(issuer), "{issuer}");
        }
        for issuer in [
            "",
            "login.example.com",
            "http://login.example.com",
            "http://localhost.example.com",
            "ftp://login.example.com",
            "https://login.example.com/?a=b",
        ] {
            assert!(!is_issuer(issuer), "{issuer}");
        }
    }
}
