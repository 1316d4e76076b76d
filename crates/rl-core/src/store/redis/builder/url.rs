//! The forms of the URL of a store.

use std::collections::BTreeMap;

#[cfg(feature = "redis-sentinel")]
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::Servers;
#[cfg(feature = "redis-tls")]
use crate::store::redis::connection::Tls;
use crate::store::redis::connection::{Login, NO_FRAGMENT, redacted_url, validate_url};
use crate::store::redis::error::ConnectError;

/// The default port of sentinels.
#[cfg(feature = "redis-sentinel")]
const SENTINEL_PORT: u16 = 26_379;

/// Reads a URL, without connecting and without reading files.
///
/// The login contains what the URLs of the servers cannot express: certificates, and behind
/// sentinels the login to the servers.
pub(super) fn read(url: &str) -> Result<(Servers, Login), ConnectError> {
    let read = parse(url)?;
    for server in read.0.urls() {
        // The error shows the scheme of the whole URL, not that of one server.
        validate_url(server).map_err(|error| match error {
            ConnectError::Url { why, .. } => ConnectError::Url { shown: redacted_url(url), why },
            other => other,
        })?;
    }
    Ok(read)
}

fn parse(url: &str) -> Result<(Servers, Login), ConnectError> {
    let invalid = |why: String| ConnectError::Url { shown: redacted_url(url), why };
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let scheme = scheme.to_ascii_lowercase();
    let (transport, kind) = scheme.split_once('-').unwrap_or((&scheme, ""));
    let is_tls = match (transport, kind) {
        ("redis", "" | "sentinel" | "cluster") | ("valkey", "") => false,
        ("rediss", "" | "sentinel" | "cluster") | ("valkeys", "") => true,
        // The path to a socket, or an unknown scheme.
        _ => return Ok((Servers::One(url.to_owned()), Login::default())),
    };
    let (rest, fragment) = split(rest, '#');
    let (rest, query) = split(rest, '?');
    if fragment.is_some() && kind != "sentinel" {
        return Err(invalid(NO_FRAGMENT.to_owned()));
    }
    let query = parameters(query.unwrap_or_default(), kind, is_tls).map_err(invalid)?;
    let login = Login {
        #[cfg(feature = "redis-tls")]
        tls: if is_tls { Some(certificates(&query).map_err(invalid)?) } else { None },
        ..Login::default()
    };
    match kind {
        "sentinel" => {
            #[cfg(feature = "redis-sentinel")]
            return sentinels(transport, rest, fragment, &query, login).map_err(invalid);
            #[cfg(not(feature = "redis-sentinel"))]
            Err(ConnectError::Feature { what: "redis-sentinel://", feature: "redis-sentinel" })
        }
        "cluster" => {
            #[cfg(feature = "redis-cluster")]
            return cluster(transport, rest, login).map_err(invalid);
            #[cfg(not(feature = "redis-cluster"))]
            Err(ConnectError::Feature { what: "redis-cluster://", feature: "redis-cluster" })
        }
        _ => {
            let protocol = query.get("protocol").map(|version| format!("?protocol={version}"));
            let url = format!("{transport}://{rest}{}", protocol.unwrap_or_default());
            Ok((Servers::One(url), login))
        }
    }
}

/// Reads the query of a URL. Errors do not show the parameters: if a `?` in a password is not
/// encoded, one of them is the password.
fn parameters(
    query: &str,
    kind: &str,
    is_tls: bool,
) -> Result<BTreeMap<&'static str, String>, String> {
    let known = [
        ("ca", is_tls),
        ("cert", is_tls),
        ("key", is_tls),
        ("sentinel_password", kind == "sentinel"),
        ("protocol", kind.is_empty()),
    ];
    let accepted = known.into_iter().filter_map(|(name, fits)| fits.then_some(name));
    let mut read = BTreeMap::new();
    for (index, parameter) in query.split('&').filter(|text| !text.is_empty()).enumerate() {
        let (given, value) = split(parameter, '=');
        let number = index + 1;
        let Some(name) = accepted.clone().find(|name| *name == given) else {
            let names: Vec<_> = accepted.collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let hint = if is_tls { "" } else { " (and with TLS: ca, cert, key)" };
            return Err(format!(
                "query parameter {number} is not known: accepted is {names}{hint}"
            ));
        };
        let value = decoded(value.unwrap_or_default())?;
        if value.is_empty() || read.insert(name, value).is_some() {
            return Err(format!("query parameter {name}: expected one value"));
        }
    }
    Ok(read)
}

/// Returns the files of certificates that the parameters name.
#[cfg(feature = "redis-tls")]
fn certificates(parameters: &BTreeMap<&str, String>) -> Result<Tls, String> {
    let file = |name| parameters.get(name).cloned();
    let tls = file("ca").map_or_else(Tls::new, |ca| Tls::new().ca_file(ca));
    match (file("cert"), file("key")) {
        (None, None) => Ok(tls),
        (Some(certificate), Some(key)) => Ok(tls.client_certificate_files(certificate, key)),
        _ => Err("query parameters cert and key: expected both or none".to_owned()),
    }
}

/// Reads the part of a URL with sentinels after the scheme.
#[cfg(feature = "redis-sentinel")]
fn sentinels(
    transport: &str,
    rest: &str,
    name: Option<&str>,
    parameters: &BTreeMap<&str, String>,
    mut login: Login,
) -> Result<(Servers, Login), String> {
    let name = name.ok_or("expected #NAME of the primary")?;
    // Sentinels accept these characters. Others are a # in a password.
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_name) {
        return Err("the name of the primary has characters other than A-Z a-z 0-9 . - _; a # in \
                    a password is written %23"
            .to_owned());
    }
    let (of_servers, hosts, database) = authority(rest)?;
    login.database = database;
    if let Some(of_servers) = of_servers {
        let (user, password) = split(of_servers, ':');
        login.user = Some(decoded(user)?).filter(|user| !user.is_empty());
        login.password = password.map(decoded).transpose()?;
    }
    let of_sentinels = parameters
        .get("sentinel_password")
        .map(|password| format!(":{}@", utf8_percent_encode(password, NON_ALPHANUMERIC)));
    let of_sentinels = of_sentinels.unwrap_or_default();
    let url = |host: &str| {
        let after_brackets = host.rsplit(']').next().unwrap_or(host);
        let has_port = after_brackets.contains(':');
        let port = if has_port { String::new() } else { format!(":{SENTINEL_PORT}") };
        format!("{transport}://{of_sentinels}{host}{port}/")
    };
    let urls = hosts.split(',').map(url).collect();
    Ok((Servers::Sentinels { urls, name: name.to_owned() }, login))
}

/// Reads the part of a URL of a cluster after the scheme.
#[cfg(feature = "redis-cluster")]
fn cluster(transport: &str, rest: &str, login: Login) -> Result<(Servers, Login), String> {
    let (of_servers, hosts, database) = authority(rest)?;
    if database.is_some_and(|database| database != 0) {
        return Err("a cluster has database 0 only".to_owned());
    }
    let of_servers = of_servers.map(|login| format!("{login}@")).unwrap_or_default();
    let url = |host: &str| format!("{transport}://{of_servers}{host}/");
    Ok((Servers::Cluster(hosts.split(',').map(url).collect()), login))
}

/// Splits `[user:password@]host,…[/database]` into its parts.
#[cfg(any(feature = "redis-sentinel", feature = "redis-cluster"))]
fn authority(text: &str) -> Result<(Option<&str>, &str, Option<u32>), String> {
    let (login, place) = text.rsplit_once('@').map_or((None, text), |(l, p)| (Some(l), p));
    let (hosts, path) = split(place, '/');
    let database = path.filter(|path| !path.is_empty()).map(str::parse).transpose();
    Ok((login, hosts, database.map_err(|_| "invalid database number")?))
}

/// Splits a text at the first of these characters.
fn split(text: &str, at: char) -> (&str, Option<&str>) {
    text.split_once(at).map_or((text, None), |(before, after)| (before, Some(after)))
}

/// Decodes the `%41` of a URL.
fn decoded(text: &str) -> Result<String, String> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| "percent-encoded text is not UTF-8".to_owned())
}

#[cfg(all(test, feature = "redis-sentinel", feature = "redis-cluster", feature = "redis-tls"))]
mod tests {
    use super::*;

    /// A URL, those of its servers, the user and password of the login, and the database.
    type Row = (&'static str, &'static [&'static str], [Option<&'static str>; 2], Option<u32>);

    #[test]
    fn urls_are_read_into_servers_and_a_login() {
        #[rustfmt::skip]
        let table: [Row; 9] = [
            ("redis://app:p%40ss@h:7000/2", &["redis://app:p%40ss@h:7000/2"], [None, None], None),
            ("REDISS://h?ca=/ca.pem&protocol=resp3", &["rediss://h?protocol=resp3"], [None, None], None),
            ("unix:///run/redis.sock?db=2", &["unix:///run/redis.sock?db=2"], [None, None], None),
            ("redis-sentinel://[::1],10.0.0.1:7000#a.b-c_1", &["redis://[::1]:26379/", "redis://10.0.0.1:7000/"], [None, None], None),
            ("rediss-sentinel://app:p%40s%23@h/2?sentinel_password=a%2Fb%40#limits", &["rediss://:a%2Fb%40@h:26379/"], [Some("app"), Some("p@s#")], Some(2)),
            ("redis-sentinel://:secret@h#limits", &["redis://h:26379/"], [None, Some("secret")], None),
            ("redis-sentinel://h/?sentinel_password=a/b@#limits", &["redis://:a%2Fb%40@h:26379/"], [None, None], None),
            ("redis-cluster://app:p%40ss@h:7000,[::1]/", &["redis://app:p%40ss@h:7000/", "redis://app:p%40ss@[::1]/"], [None, None], None),
            ("rediss-cluster://h/0?cert=/c.pem&key=/k.pem", &["rediss://h/"], [None, None], None),
        ];
        for (url, urls, [user, password], database) in table {
            let (servers, login) = read(url).unwrap();
            assert_eq!(servers.urls(), urls, "{url}");
            assert_eq!(
                (login.user.as_deref(), login.password.as_deref()),
                (user, password),
                "{url}"
            );
            assert_eq!(login.database, database, "{url}");
            let tls = format!("{:?}", login.tls);
            assert_eq!(tls.contains("own_ca: true"), url.contains("?ca="), "{url}: {tls}");
            assert_eq!(
                tls.contains("client_certificate: true"),
                url.contains("cert="),
                "{url}: {tls}"
            );
        }
    }

    #[test]
    fn malformed_urls_are_refused_without_showing_their_secrets() {
        #[rustfmt::skip]
        let table = [
            ("http://:hunter2@h", "expected redis://"),
            ("hunter2", "redis url did not parse"),
            ("redis-other://:hunter2@h", "expected redis://"),
            ("redis://u:hunter2?x@h/", "query parameter 1 is not known: accepted is protocol (and with TLS: ca, cert, key)"),
            ("redis://h?ca=hunter2", "query parameter 1 is not known"),
            ("rediss://h?ca=x&hunter2=y", "query parameter 2 is not known: accepted is ca, cert, key, protocol; expected"),
            ("rediss://h?ca=hunter2&ca=hunter2", "query parameter ca: expected one value"),
            ("rediss://:hunter2@h?ca=", "query parameter ca: expected one value"),
            ("rediss://h?ca=%ff", "percent-encoded text is not UTF-8"),
            ("rediss://h?cert=hunter2", "query parameters cert and key: expected both or none"),
            ("rediss://:hunter2@h?ca=x#insecure", "always verified"),
            ("redis://h?protocol=hunter2", "protocol"),
            ("redis-sentinel://:hunter2@10.0.0.1", "expected #NAME of the primary; expected redis-sentinel://[user:password@]"),
            ("redis-sentinel://h#", "the name of the primary has"),
            ("redis-sentinel://u:7#hunter2@h#limits", "a # in a password is written %23"),
            ("redis-sentinel://h?hunter2#limits", "accepted is sentinel_password (and with TLS: ca, cert, key)"),
            ("redis-sentinel://h/hunter2#limits", "invalid database number"),
            ("redis-sentinel://#limits", "expected redis-sentinel://"),
            ("redis-sentinel://:hunter2@h,:7#limits", "expected redis-sentinel://"),
            ("redis-cluster://", "expected redis-cluster://"),
            ("redis-cluster://:hunter2@h,", "expected redis-cluster://"),
            ("redis-cluster://:hunter2@h:99999", "redis url did not parse"),
            ("redis-cluster://:hunter2@h/1", "a cluster has database 0 only"),
            ("redis-cluster://h?hunter2", "accepted is none (and with TLS: ca, cert, key)"),
            ("redis-cluster://:hunter2#@h", "a fragment (#…) is not accepted"),
        ];
        for (url, expected) in table {
            let error = read(url).err().unwrap_or_else(|| panic!("{url} is accepted"));
            let shown = format!("{error} {error:?} {:?}", crate::RedisStore::builder(url));
            assert!(shown.contains(expected) && !shown.contains("hunter2"), "{url}: {shown}");
        }
    }
}

#[cfg(all(test, not(feature = "redis-sentinel"), not(feature = "redis-cluster")))]
mod tests_without_features {
    #[test]
    fn errors_name_the_missing_feature() {
        for (url, feature) in [
            ("redis-sentinel://h#limits", "redis-sentinel"),
            ("redis-cluster://h", "redis-cluster"),
        ] {
            let error = super::read(url).err().unwrap().to_string();
            let expected = format!("{feature}:// needs feature `{feature}` of rl-core");
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}
