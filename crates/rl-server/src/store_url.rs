//! The store that a URL names.

use std::sync::Arc;

use rl_core::store::Store;
use rl_core::{MemoryStore, RedisStore};

/// Connects to the store at a URL:
///
/// | URL | store |
/// |---|---|
/// | `memory` | counters in the memory of this process |
/// | `redis://[user:password@]host[:port][/database]` | a server; `rediss://` is over TLS |
/// | `redis-sentinel://[user:password@]host[:port],…[?sentinel_password=…]#NAME` | the primary that the sentinels call `NAME`, with the login to it, and the password of the sentinels; or `rediss-sentinel://` |
/// | `redis-cluster://[user:password@]host[:port],…` | a cluster; or `rediss-cluster://` |
///
/// # Errors
///
/// Returns an error, which contains no password, if the URL has another form, or a server refuses
/// the login.
pub(crate) async fn connect(url: &str) -> Result<Arc<dyn Store>, String> {
    check(url)?;
    if url == "memory" {
        return Ok(Arc::new(MemoryStore::new()));
    }
    let builder = match url.split_once("://") {
        Some((scheme @ ("redis-sentinel" | "rediss-sentinel"), rest)) => {
            let (rest, name) = rest.split_once('#').ok_or("expected #NAME of the primary")?;
            let (rest, of_sentinels) = match rest.split_once('?') {
                None => (rest, None),
                Some((rest, query)) => {
                    let password = query.strip_prefix("sentinel_password=");
                    (rest, Some(password.ok_or("expected ?sentinel_password=… or no query")?))
                }
            };
            let of_sentinels = of_sentinels.map(|password| format!(":{password}"));
            let (login, hosts) = login(rest);
            let builder = RedisStore::sentinel(urls(scheme, of_sentinels.as_deref(), hosts), name);
            match login.map(|login| login.split_once(':').unwrap_or(("", login))) {
                None => builder,
                Some(("", password)) => builder.password(&decoded(password)?),
                Some((user, password)) => {
                    builder.user(&decoded(user)?).password(&decoded(password)?)
                }
            }
        }
        Some((scheme @ ("redis-cluster" | "rediss-cluster"), rest)) => {
            let (login, hosts) = login(rest);
            RedisStore::cluster(urls(scheme, login, hosts))
        }
        _ => RedisStore::builder(url),
    };
    let store = builder.connect().await.map_err(|error| error.to_string())?;
    Ok(Arc::new(store))
}

/// Checks the form of a URL without a connection.
///
/// # Errors
///
/// Returns what is expected. It contains no password.
pub(crate) fn check(url: &str) -> Result<(), String> {
    const SCHEMES: [&str; 6] =
        ["redis", "rediss", "redis-sentinel", "rediss-sentinel", "redis-cluster", "rediss-cluster"];
    match url.split_once("://") {
        Some((scheme, rest)) if SCHEMES.contains(&scheme) && !rest.is_empty() => Ok(()),
        _ if url == "memory" => Ok(()),
        _ => Err(format!("expected memory, or SCHEME://HOST with {}", SCHEMES.join(", "))),
    }
}

/// Splits the part of a URL after its scheme into the login and the list of hosts.
fn login(rest: &str) -> (Option<&str>, &str) {
    match rest.rsplit_once('@') {
        Some((login, hosts)) => (Some(login), hosts),
        None => (None, rest),
    }
}

/// Returns the URL of each host.
fn urls(scheme: &str, login: Option<&str>, hosts: &str) -> Vec<String> {
    let scheme = scheme.split('-').next().unwrap_or(scheme);
    let login = login.map(|login| format!("{login}@")).unwrap_or_default();
    let hosts = hosts.trim_end_matches('/').split(',').map(str::trim);
    hosts.map(|host| format!("{scheme}://{login}{host}")).collect()
}

/// Decodes the `%41` of a user or password.
fn decoded(text: &str) -> Result<String, String> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| "login: expected UTF-8 in the form of a URL".to_owned())
}

#[cfg(test)]
mod tests {
    use super::{connect, login, urls};

    #[test]
    fn hosts_of_a_list_have_the_scheme_and_the_login_of_the_url() {
        let (user, hosts) = login("app:p%40ss@10.0.0.1:7000,10.0.0.2/");
        let expected = ["rediss://app:p%40ss@10.0.0.1:7000", "rediss://app:p%40ss@10.0.0.2"];
        assert_eq!(urls("rediss-cluster", user, hosts), expected);
        assert_eq!(login("10.0.0.1"), (None, "10.0.0.1"));
    }

    #[tokio::test]
    async fn errors_of_urls_show_no_password() {
        for url in [
            "redis-sentinel://:secret@10.0.0.1",
            "redis-sentinel://10.0.0.1?secret#x",
            "http://:secret@x",
            "secret",
        ] {
            let error = connect(url).await.err().unwrap();
            assert!(!error.contains("secret") && error.contains("expected"), "{url}: {error}");
        }
        assert!(connect("memory").await.is_ok());
    }
}
