//! Calls to the provider.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use openidconnect::core::{
    CoreAuthenticationFlow, CoreClient, CoreClientAuthMethod, CoreErrorResponseType,
    CoreGenderClaim, CoreIdToken, CoreJwsSigningAlgorithm, CoreProviderMetadata,
};
use openidconnect::{
    AccessToken, AccessTokenHash, AdditionalClaims, AuthType, AuthorizationCode,
    ClaimsVerificationError, ClientId, ClientSecret, CsrfToken, EndpointMaybeSet, EndpointNotSet,
    EndpointSet, HttpRequest, HttpResponse, IssuerUrl, Nonce, OAuth2TokenResponse,
    PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, RequestTokenError, Scope,
    SignatureVerificationError, SubjectIdentifier, TokenResponse, UserInfoClaims,
};
use rl_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio::time::timeout;

use super::config::Oidc;
use super::person::{Claims, name_of, values_of};
use crate::access::Actor;
use crate::webhook::client_config;

/// The time limit of a request to the provider.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// The size limit of a response of the provider, in bytes.
const MAX_RESPONSE: usize = 1024 * 1024;

/// The time for which the endpoints and keys of the provider are cached, in microseconds.
const KEEP: u64 = 3_600_000_000;

/// The time for which the provider is not called after a failure, in microseconds.
const PAUSE: u64 = 5_000_000;

/// The signatures of ID tokens that are accepted. All of them need a key that only the provider has.
const SIGNATURES: [CoreJwsSigningAlgorithm; 9] = [
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha384,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha512,
    CoreJwsSigningAlgorithm::RsaSsaPssSha256,
    CoreJwsSigningAlgorithm::RsaSsaPssSha384,
    CoreJwsSigningAlgorithm::RsaSsaPssSha512,
    CoreJwsSigningAlgorithm::EcdsaP256Sha256,
    CoreJwsSigningAlgorithm::EcdsaP384Sha384,
    CoreJwsSigningAlgorithm::EdDsa,
];

/// A client of the provider.
pub(crate) struct Provider {
    oidc: Oidc,
    http: Option<Http>,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    found: Option<(Arc<Discovered>, Timestamp)>,
    paused_until: Timestamp,
}

/// The endpoints and keys that the provider publishes.
struct Discovered {
    client: Client,
    scopes: Vec<Scope>,
}

/// A client that follows no redirects, which could lead to hosts that only this server reaches, and
/// uses no proxies of the environment.
type Http = HttpClient<HttpsConnector<HttpConnector>, Full<Bytes>>;

type Client = CoreClient<
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointMaybeSet,
    EndpointMaybeSet,
>;

/// The secrets of a sign-in that has begun, which the browser keeps.
#[derive(Serialize, Deserialize)]
pub(crate) struct Pending {
    pub(crate) state: String,
    nonce: String,
    verifier: String,
}

/// The reason for which a person is not signed in. The texts are for the log, and contain no
/// secret.
#[derive(Debug)]
pub(crate) enum SignInError {
    /// The provider cannot be reached, or its response does not follow OpenID Connect.
    Unavailable(String),
    /// The provider does not accept the code, or its ID token is not valid.
    Refused(String),
    /// The person has no usable name.
    NoName,
    /// No value of the claim has roles.
    NoRoles { name: String },
}

/// All claims beyond the standard ones.
#[derive(Debug, Serialize, Deserialize)]
struct OtherClaims(BTreeMap<String, Value>);

impl AdditionalClaims for OtherClaims {}

impl Provider {
    pub(crate) fn new(oidc: Oidc) -> Self {
        let http = client_config().map(|tls| {
            let connector = HttpsConnectorBuilder::new().with_tls_config(tls);
            let connector = connector.https_or_http().enable_http1().build();
            HttpClient::builder(TokioExecutor::new()).build(connector)
        });
        Self { oidc, http, cache: Mutex::default() }
    }

    pub(crate) const fn oidc(&self) -> &Oidc {
        &self.oidc
    }

    /// Returns the address at which a person signs in, and the secrets that the browser must keep
    /// until the provider sends it to `return_to`.
    ///
    /// # Errors
    ///
    /// Returns an error if the provider was not reached before, and cannot be reached now.
    pub(crate) async fn begin(
        &self,
        return_to: &str,
        now: Timestamp,
    ) -> Result<(String, Pending), SignInError> {
        let found = self.discovered(now, KEEP).await?;
        let client = found.client.clone().set_redirect_uri(redirect(return_to)?);
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let (url, state, nonce) = client
            .authorize_url(
                CoreAuthenticationFlow::AuthorizationCode,
                CsrfToken::new_random,
                Nonce::new_random,
            )
            .add_scopes(found.scopes.iter().cloned())
            .set_pkce_challenge(challenge)
            .url();
        let (state, nonce) = (state.into_secret(), nonce.secret().clone());
        Ok((url.into(), Pending { state, nonce, verifier: verifier.into_secret() }))
    }

    /// Returns the actor for whom the provider issued this code.
    ///
    /// # Errors
    ///
    /// Returns an error if the provider cannot be reached, if it refuses the code, if its ID token
    /// is not valid, or if the person has no roles.
    pub(crate) async fn finish(
        &self,
        pending: Pending,
        code: String,
        return_to: &str,
        now: Timestamp,
    ) -> Result<Actor, SignInError> {
        let found = self.discovered(now, KEEP).await?;
        let actor = self.exchange(&found, pending, code, return_to, now).await;
        actor.inspect_err(|error| self.log(error))
    }

    async fn exchange(
        &self,
        found: &Discovered,
        pending: Pending,
        code: String,
        return_to: &str,
        now: Timestamp,
    ) -> Result<Actor, SignInError> {
        let http = |request| send(self.http.clone(), request);
        let client = found.client.clone().set_redirect_uri(redirect(return_to)?);
        let exchange = client.exchange_code(AuthorizationCode::new(code)).map_err(unavailable)?;
        let tokens = exchange.set_pkce_verifier(PkceCodeVerifier::new(pending.verifier));
        let tokens = tokens.request_async(&http).await.map_err(|error| match &error {
            RequestTokenError::ServerResponse(answer)
                if *answer.error() == CoreErrorResponseType::InvalidGrant =>
            {
                SignInError::Refused(described(&error))
            }
            // Such as a wrong secret of the client.
            _ => unavailable(error),
        })?;
        let no_token = || SignInError::Refused("the response has no ID token".to_owned());
        let token = tokens.id_token().ok_or_else(no_token)?;
        let nonce = Nonce::new(pending.nonce);
        let mut verified = verify(&found.client, token, tokens.access_token(), &nonce);
        if verified.as_ref().is_err_and(is_unknown_key) {
            // The provider may have new keys.
            let found = self.discovered(now, PAUSE).await?;
            verified = verify(&found.client, token, tokens.access_token(), &nonce);
        }
        let subject = verified.map_err(|error| SignInError::Refused(described(&error)))?;
        let mut claims = claims_of(token);
        if values_of(&claims, &self.oidc.claim).is_none() && client.user_info_url().is_some() {
            let asked = client.user_info(
                tokens.access_token().clone(),
                Some(SubjectIdentifier::new(subject.clone())),
            );
            let asked = asked.map_err(unavailable)?;
            let more: UserInfoClaims<OtherClaims, CoreGenderClaim> =
                asked.request_async(&http).await.map_err(unavailable)?;
            if let Ok(Value::Object(more)) = serde_json::to_value(more) {
                more.into_iter().for_each(|(name, value)| {
                    claims.entry(name).or_insert(value);
                });
            }
        }
        let name = name_of(&claims, &subject, &self.oidc.issuer).ok_or(SignInError::NoName)?;
        let values = values_of(&claims, &self.oidc.claim).unwrap_or_default();
        self.oidc.actor(&name, &values).ok_or(SignInError::NoRoles { name })
    }

    /// Logs the reason for which a person was not signed in.
    fn log(&self, error: &SignInError) {
        let issuer = &self.oidc.issuer;
        match error {
            SignInError::Unavailable(error) => {
                tracing::warn!(target: "rl_admin", issuer, error, "sign-in provider failing");
            }
            SignInError::Refused(reason) => {
                tracing::warn!(target: "rl_admin", issuer, reason, "sign-in refused");
            }
            SignInError::NoName => {
                tracing::warn!(target: "rl_admin", issuer, "sign-in without a usable id");
            }
            SignInError::NoRoles { name } => {
                tracing::info!(target: "rl_admin", issuer, by = name, "sign-in without roles");
            }
        }
    }

    /// Returns the endpoints and keys of the provider, which are at most `age` microseconds old.
    /// Returns older ones if the provider cannot be reached.
    async fn discovered(&self, now: Timestamp, age: u64) -> Result<Arc<Discovered>, SignInError> {
        // Concurrent sign-ins wait here, so that only one of them calls the provider.
        let mut cache = self.cache.lock().await;
        let known = cache.found.clone();
        if let Some((found, _)) = known.as_ref().filter(|(_, at)| now.micros_since(*at) < age) {
            return Ok(found.clone());
        }
        let begun = Instant::now();
        let result = match now < cache.paused_until {
            true => Err(SignInError::Unavailable("not tried again yet".to_owned())),
            false => self.discover().await.map(Arc::new),
        };
        match (result, known) {
            (Ok(found), _) => {
                cache.found = Some((found.clone(), now));
                Ok(found)
            }
            (Err(error), known) => {
                if now >= cache.paused_until {
                    self.log(&error);
                    // `now` is the time before the call, which may have taken as long as the pause.
                    let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(PAUSE);
                    cache.paused_until = now.plus_micros(took.saturating_add(PAUSE));
                }
                known.map(|(found, _)| found).ok_or(error)
            }
        }
    }

    async fn discover(&self) -> Result<Discovered, SignInError> {
        let http = |request| send(self.http.clone(), request);
        let issuer = IssuerUrl::new(self.oidc.issuer.clone()).map_err(unavailable)?;
        let metadata = CoreProviderMetadata::discover_async(issuer, &http).await;
        let metadata = metadata.map_err(unavailable)?;
        let offered = metadata.scopes_supported();
        let is_offered = |name: &str| match offered {
            Some(offered) => offered.iter().any(|scope| scope.as_str() == name),
            None => matches!(name, "profile" | "email"),
        };
        let scopes =
            ["profile", "email", &self.oidc.claim].into_iter().filter(|name| is_offered(name));
        let scopes: Vec<_> = scopes.map(|name| Scope::new(name.to_owned())).collect();
        let methods = metadata.token_endpoint_auth_methods_supported().map(Vec::as_slice);
        let auth = match methods {
            Some(methods)
                if methods.contains(&CoreClientAuthMethod::ClientSecretPost)
                    && !methods.contains(&CoreClientAuthMethod::ClientSecretBasic) =>
            {
                AuthType::RequestBody
            }
            _ => AuthType::BasicAuth,
        };
        let id = ClientId::new(self.oidc.client_id.clone());
        let secret = ClientSecret::new(self.oidc.client_secret.clone());
        let client = CoreClient::from_provider_metadata(metadata, id, Some(secret));
        Ok(Discovered { client: client.set_auth_type(auth), scopes })
    }
}

/// Verifies an ID token, and that it belongs to the access token. Returns the id of the person.
fn verify(
    client: &Client,
    token: &CoreIdToken,
    access: &AccessToken,
    nonce: &Nonce,
) -> Result<String, ClaimsVerificationError> {
    let verifier = client.id_token_verifier().set_allowed_algs(SIGNATURES);
    let claims = token.claims(&verifier, nonce)?;
    if let Some(expected) = claims.access_token_hash() {
        let of_token = ClaimsVerificationError::SignatureVerification;
        let algorithm = token.signing_alg().map_err(of_token)?;
        let key = token.signing_key(&verifier).map_err(of_token)?;
        let actual = AccessTokenHash::from_token(access, algorithm, key);
        if !actual.is_ok_and(|actual| actual == *expected) {
            let reason = "the hash of the access token differs".to_owned();
            return Err(ClaimsVerificationError::Other(reason));
        }
    }
    Ok(claims.subject().to_string())
}

const fn is_unknown_key(error: &ClaimsVerificationError) -> bool {
    matches!(
        error,
        ClaimsVerificationError::SignatureVerification(SignatureVerificationError::NoMatchingKey)
    )
}

/// Returns all claims of a verified ID token.
fn claims_of(token: &CoreIdToken) -> Claims {
    let token = token.to_string();
    let payload = token.split('.').nth(1).unwrap_or_default();
    let payload = BASE64_URL_SAFE_NO_PAD.decode(payload).unwrap_or_default();
    serde_json::from_slice(&payload).unwrap_or_default()
}

/// Sends a request to the provider.
async fn send(http: Option<Http>, request: HttpRequest) -> io::Result<HttpResponse> {
    let http = http.ok_or_else(|| io::Error::other("TLS has no certificate authorities"))?;
    let exchange = async {
        let request = request.map(|body| Full::new(Bytes::from(body)));
        let (parts, body) = http.request(request).await.map_err(io::Error::other)?.into_parts();
        let body = Limited::new(body, MAX_RESPONSE).collect().await.map_err(io::Error::other)?;
        Ok(HttpResponse::from_parts(parts, body.to_bytes().into()))
    };
    timeout(TIME_LIMIT, exchange).await?
}

fn redirect(return_to: &str) -> Result<RedirectUrl, SignInError> {
    RedirectUrl::new(return_to.to_owned()).map_err(unavailable)
}

fn unavailable(error: impl Error) -> SignInError {
    SignInError::Unavailable(described(&error))
}

/// Returns the texts of an error and of its causes.
fn described(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
