//! Subjects as text: `realm:id`.

use std::net::IpAddr;

use rl_core::client_ip::ClientIp;
use rl_core::{Realm, Subject};

/// Returns the subject of a text such as `consumer:abc`, in the form in which rules count it.
///
/// An address of IPv6 is counted by its network, and a key by its keyed hash, which has 32
/// hexadecimal digits. The only subject of the realms `global` and `unknown` has no id, or `-`.
///
/// # Errors
///
/// Returns what is expected.
pub(super) fn subject(text: &str) -> Result<Subject, &'static str> {
    let (realm, id) = text.split_once(':').ok_or("realm:id, such as consumer:abc")?;
    let is_only = matches!(id, "" | "-");
    match realm_of(realm)? {
        Realm::Ip => ip(id),
        Realm::Global if is_only => Ok(Subject::global()),
        realm @ Realm::Unknown if is_only => Ok(Subject::new(realm, "")),
        Realm::Global | Realm::Unknown => Err("global: or unknown: without an id"),
        _ if id.is_empty() => Err("realm:id with an id that is not empty"),
        Realm::Key => Ok(Subject::displayed_key(id)),
        realm => Ok(Subject::new(realm, id)),
    }
}

fn realm_of(name: &str) -> Result<Realm, &'static str> {
    let known =
        [Realm::Ip, Realm::Key, Realm::Consumer, Realm::User, Realm::Global, Realm::Unknown];
    let known = known.into_iter().find(|realm| realm.as_str() == name);
    known.map_or_else(|| Realm::custom(name), Ok).map_err(|_| {
        "a realm: ip, key, consumer, user, global, unknown, or 1 to 32 characters of a-z, 0-9, _ and -"
    })
}

fn ip(id: &str) -> Result<Subject, &'static str> {
    let expected = "ip: with an address such as 192.0.2.7 or 2001:db8::1";
    let address = id.split_once('/').map_or(id, |(address, _)| address);
    let address: IpAddr = address.parse().map_err(|_| expected)?;
    let counted = ClientIp::peer().resolve(Some(address), &[]).ok_or(expected)?.to_string();
    if id.contains('/') && id != counted {
        return Err("ip: with an address, or with a network of /64 such as 2001:db8::/64");
    }
    Ok(Subject::new(Realm::Ip, &counted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_read_in_the_form_in_which_rules_count_it() {
        let custom = Realm::custom("tenant").unwrap();
        for (text, expected) in [
            ("consumer:abc", Subject::consumer("abc")),
            ("consumer:a:b", Subject::consumer("a:b")),
            ("user:alice", Subject::user("alice")),
            ("ip:192.0.2.7", Subject::ip([192, 0, 2, 7])),
            ("ip:::ffff:192.0.2.7", Subject::ip([192, 0, 2, 7])),
            ("ip:2001:db8::7", Subject::new(Realm::Ip, "2001:db8::/64")),
            ("ip:2001:db8::/64", Subject::new(Realm::Ip, "2001:db8::/64")),
            ("global:-", Subject::global()),
            ("global:", Subject::global()),
            ("unknown:-", Subject::new(Realm::Unknown, "")),
            ("tenant:acme", Subject::new(custom, "acme")),
            ("key:abababababababababababababababab", Subject::digest(Realm::Key, [0xab; 16])),
        ] {
            assert_eq!(subject(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn an_error_says_what_is_expected() {
        for (text, expected) in [
            ("abc", "realm:id"),
            ("consumer:", "not empty"),
            ("Consumer:abc", "a realm"),
            ("ip:localhost", "an address"),
            ("ip:2001:db8::7/64", "a network of /64"),
            ("ip:192.0.2.0/24", "a network of /64"),
            ("global:all", "global: or"),
        ] {
            let error = subject(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
