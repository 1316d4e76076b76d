use std::sync::Arc;

use std::net::IpAddr;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use rl_core::{Realm, Subject};
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterIn};

use super::path::{PathParam, RealmName, SubjectText, segment};
use super::scope::ScopedRequest;
use crate::context::Context;
use crate::error::ApiError;
use crate::subject_rules::name_of;

/// The subject that a path names by realm and id, in the form in which the limiter counts it.
pub(crate) struct SubjectParams(pub(crate) Subject);

impl FromRequestParts<Arc<Context>> for SubjectParams {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        context: &Arc<Context>,
    ) -> Result<Self, ApiError> {
        let RealmName(realm) = segment(parts, context).await?;
        let SubjectText(id) = segment(parts, context).await?;
        let subject = subject(context, realm, id.as_str())?;
        if let Some(request) = ScopedRequest::of(parts, context)? {
            request.subject(&subject)?;
        }
        Ok(Self(subject))
    }
}

/// Describes both parameters in the OpenAPI document.
impl IntoParams for SubjectParams {
    fn into_params(place: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let mut parameters = PathParam::<RealmName>::into_params(&place);
        parameters.extend(PathParam::<SubjectText>::into_params(&place));
        parameters
    }
}

/// Returns the subject of this realm and id in the form in which the limiter counts it. An address
/// is counted by its network, and an API key by its keyed hash.
///
/// If the service can never count the subject, this is an error, because a response about the
/// subject would be misleading.
pub(crate) fn subject(context: &Context, realm: Realm, id: &str) -> Result<Subject, ApiError> {
    let wrong = |expected: &str| Err(ApiError::invalid_value("SUBJECT_ID", id, expected));
    match realm {
        Realm::Ip => address(context, id),
        Realm::Key => Ok(Subject::displayed_key(id)),
        Realm::Global if id == "-" => Ok(Subject::global()),
        Realm::Unknown if id == "-" => Ok(Subject::new(realm, "")),
        Realm::Global | Realm::Unknown => wrong("-, the only subject of this realm"),
        Realm::Custom(_) if !context.realms.contains(&realm) => {
            let expected = format!("one of {}", context.realm_names().join(", "));
            Err(ApiError::invalid_value("REALM", realm.as_str(), &expected))
        }
        realm => Ok(Subject::new(realm, id)),
    }
}

/// Returns the subject that a body or a query names by realm and id, and the id of its records.
pub(crate) fn subject_of_body(
    context: &Context,
    realm: Realm,
    id: &str,
) -> Result<(Realm, String), ApiError> {
    let subject = subject(context, realm, id);
    let subject = subject
        .map_err(|error| error.renamed("SUBJECT_ID", "subject").renamed("REALM", "realm"))?;
    let (realm, name) = (subject.realm().clone(), name_of(&subject));
    let id = name.split_once('/').map_or(&*name, |(_, id)| id);
    Ok((realm, id.to_owned()))
}

/// Returns the subject of an address in any notation. Accepts a network too, if it is as large as
/// the networks that the limiter counts.
fn address(context: &Context, text: &str) -> Result<Subject, ApiError> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let expected = "an address such as 192.0.2.7 or 2001:db8::1";
    let wrong = |expected: &str| ApiError::invalid_value("SUBJECT_ID", text, expected);
    let address: IpAddr = address.parse().map_err(|_| wrong(expected))?;
    let counted = context.client_ip.resolve(Some(address), &[]);
    let counted = counted.ok_or_else(|| wrong(expected))?.to_string();
    match (bits, counted.split_once('/')) {
        (None, _) => {}
        (Some(given), Some((_, bits))) if given == bits => {}
        (Some(_), Some((_, bits))) => {
            return Err(wrong(&format!("an address, or a network of /{bits}")));
        }
        (Some(_), None) => return Err(wrong("an address: IPv4 is counted by address")),
    }
    Ok(Subject::new(Realm::Ip, &counted))
}

#[cfg(test)]
mod tests {
    use rl_core::RateLimiter;
    use rl_core::client_ip::ClientIp;
    use rl_records::{RecordSource, Records};

    use super::*;
    use crate::admin::Admin;

    async fn context(client_ip: ClientIp) -> Arc<Context> {
        let records = Records::connect("sqlite::memory:").await.unwrap();
        let source = RecordSource::start(&records);
        let limiter = RateLimiter::builder().policies(source).build().unwrap();
        let tenant = Realm::custom("tenant").unwrap();
        let admin = Admin::builder(records, limiter).client_ip(client_ip).realm(tenant).build();
        admin.context().clone()
    }

    #[tokio::test]
    async fn every_notation_of_an_address_is_the_subject_that_the_limiter_counts() {
        let by_64 = context(ClientIp::peer()).await;
        let by_48 = context(ClientIp::peer().ipv6_prefix(48).unwrap()).await;
        for (text, at_64, at_48) in [
            ("192.0.2.7", "192.0.2.7", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7", "192.0.2.7"),
            ("::ffff:c000:207", "192.0.2.7", "192.0.2.7"),
            ("::1", "::/64", "::/48"),
            ("0:0:0:0:0:0:0:1", "::/64", "::/48"),
            ("2001:DB8:1:2:3::4", "2001:db8:1:2::/64", "2001:db8:1::/48"),
            ("2001:0db8:0001:0002::", "2001:db8:1:2::/64", "2001:db8:1::/48"),
        ] {
            for (context, counted) in [(&by_64, at_64), (&by_48, at_48)] {
                let found = subject(context, Realm::Ip, text).unwrap();
                assert!(found == Subject::new(Realm::Ip, counted), "{text}: {}", found.id());
            }
        }
        let network = subject(&by_64, Realm::Ip, "2001:db8::7/64").unwrap();
        assert!(network == Subject::new(Realm::Ip, "2001:db8::/64"));
    }

    #[tokio::test]
    async fn a_subject_that_is_never_counted_is_an_error_with_its_value() {
        let context = context(ClientIp::peer()).await;
        for (realm, id, words) in [
            ("ip", "999.1.1.1", "SUBJECT_ID \"999.1.1.1\": expected an address such as"),
            ("ip", "::1/128", "SUBJECT_ID \"::1/128\": expected an address, or a network of /64"),
            ("ip", "192.0.2.7/32", "IPv4 is counted by address"),
            ("ip", "localhost", "expected an address such as"),
            ("global", "all", "SUBJECT_ID \"all\": expected -"),
            ("unknown", "x", "SUBJECT_ID \"x\": expected -"),
            (
                "bogus",
                "x",
                "REALM \"bogus\": expected one of ip, key, consumer, user, global, unknown, resource, tenant",
            ),
        ] {
            let known = [Realm::Ip, Realm::Global, Realm::Unknown];
            let known = known.into_iter().find(|known| known.as_str() == realm);
            let realm = known.unwrap_or_else(|| Realm::custom(realm).unwrap());
            let error = subject(&context, realm, id).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(subject(&context, Realm::Global, "-").unwrap() == Subject::global());
        let tenant = Realm::custom("tenant").unwrap();
        let own = subject(&context, tenant.clone(), "acme").unwrap();
        assert!(own == Subject::new(tenant, "acme"));
    }

    #[tokio::test]
    async fn a_key_is_found_by_its_hash() {
        let context = context(ClientIp::peer()).await;
        let hash = Subject::digest(Realm::Key, [0xab; 16]);
        let id = hash.id().to_string();
        assert!(subject(&context, Realm::Key, &id).unwrap() == hash);
        assert!(subject(&context, Realm::Consumer, &id).unwrap() == Subject::consumer(&id));
        let other = "ABABABABABABABABABABABABABABABAB";
        assert!(subject(&context, Realm::Key, other).unwrap() == Subject::new(Realm::Key, other));
    }
}
