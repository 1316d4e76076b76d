use std::collections::BTreeSet;

use indexmap::IndexMap;
use serde::Deserialize;

use super::actor::Actor;
use super::role::{Role, Roles, UnknownRole};
use super::tokens::{InvalidTokens, check_applications};

/// The roles and applications of people, by the values of a claim about them.
///
/// An entry grants its roles for its applications only. So two entries are combined only if the
/// result grants nothing that neither of them grants: see [`Grant::add`].
#[derive(Clone, Debug)]
pub(crate) struct ClaimGrants {
    by_value: IndexMap<String, Grant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    roles: Roles,
    /// `None` if the roles are for all applications.
    applications: Option<BTreeSet<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantEntry {
    roles: Vec<String>,
    applications: Option<Vec<String>>,
}

impl ClaimGrants {
    /// Parses a JSON object with an object for each value: `roles`, and perhaps `applications`.
    pub(crate) fn from_json(json: &str) -> Result<Self, InvalidTokens> {
        let entries: IndexMap<String, GrantEntry> =
            serde_json::from_str(json).map_err(|error| {
                InvalidTokens(format!(
                    "{error}: expected an object such as {{\"limits-admins\": {{\"roles\": \
                 [\"CanReadCallLimits\"]}}}}"
                ))
            })?;
        if entries.is_empty() {
            return Err(InvalidTokens("expected at least one value of the claim".to_owned()));
        }
        let grant = |(value, entry): (String, GrantEntry)| {
            let roles: Result<Roles, UnknownRole> =
                entry.roles.iter().map(|role| role.parse::<Role>()).collect();
            let roles = roles.map_err(|error| InvalidTokens(format!("{value:?}: {error}")))?;
            if let Some(applications) = &entry.applications {
                check_applications(&value, applications)?;
            }
            let applications = entry.applications.map(|list| list.into_iter().collect());
            Ok((value, Grant { roles, applications }))
        };
        Ok(Self { by_value: entries.into_iter().map(grant).collect::<Result<_, _>>()? })
    }

    /// Returns the actor with this name and these values of the claim. Returns `None` if no entry
    /// has one of the values.
    pub(crate) fn actor(&self, name: &str, values: &[String]) -> Option<Actor> {
        let is_given = |value: &str| values.iter().any(|given| given == value);
        let mut matching = self.by_value.iter().filter(|(value, _)| is_given(value));
        let (_, first) = matching.next()?;
        let mut grant = first.clone();
        for (value, other) in matching {
            if !grant.add(other) {
                tracing::info!(
                    target: "rl_admin", by = name, value,
                    "entry of the claim not granted in full: other roles for other applications"
                );
            }
        }
        let actor = Actor::new(name, grant.roles);
        Some(match grant.applications {
            Some(applications) => actor.of_applications(applications),
            None => actor,
        })
    }
}

impl Grant {
    /// Adds the roles of another grant if it covers all applications of this one, and its
    /// applications if it has all roles of this one. Returns whether the result covers the other.
    fn add(&mut self, other: &Self) -> bool {
        let has_applications_of =
            |one: &Self, other: &Self| match (&one.applications, &other.applications) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(one), Some(other)) => one.is_superset(other),
            };
        let has_roles_of =
            |one: &Self, other: &Self| other.roles.iter().all(|role| one.roles.contains(role));
        let covers =
            |one: &Self, other: &Self| has_applications_of(one, other) && has_roles_of(one, other);
        let before = self.clone();
        if has_roles_of(other, &before) {
            self.applications = match (self.applications.take(), &other.applications) {
                (Some(own), Some(others)) => Some(&own | others),
                _ => None,
            };
        }
        if has_applications_of(other, self) {
            self.roles = self.roles.iter().chain(other.roles.iter()).collect();
        }
        covers(self, other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: &str = r#"{
        "readers": {"roles": ["CanGetRateLimits"]},
        "shop": {"roles": ["CanGetRateLimits", "CanUpdateRateLimits"], "applications": ["shop"]},
        "bank": {"roles": ["CanGetRateLimits", "CanUpdateRateLimits"], "applications": ["bank"]},
        "resets": {"roles": ["CanResetCallCounters"]},
        "shop-resets": {"roles": ["CanResetCallCounters"], "applications": ["shop"]},
        "all": {"roles": ["CanGetRateLimits", "CanUpdateRateLimits", "CanResetCallCounters"]}
    }"#;

    /// Returns the roles and the applications of a person with these values, as text.
    fn granted(values: &[&str]) -> Option<(String, String)> {
        let values: Vec<_> = values.iter().map(|value| (*value).to_owned()).collect();
        let actor = ClaimGrants::from_json(GROUPS).unwrap().actor("alice", &values)?;
        let roles: Vec<_> = actor.roles().iter().map(Role::as_str).collect();
        let applications = actor.applications().map_or("all".to_owned(), |list| list.join(" "));
        Some((roles.join(" "), applications))
    }

    #[test]
    fn entries_are_combined_only_if_no_role_reaches_an_application_without_it() {
        let (read, write, reset) =
            ("CanGetRateLimits", "CanUpdateRateLimits", "CanResetCallCounters");
        let edit = format!("{write} {read}");
        #[rustfmt::skip]
        let table: &[(&[&str], &str, &str)] = &[
            (&["readers", "unknown"], read, "all"),
            (&["shop"], &edit, "shop"),
            (&["bank", "shop"], &edit, "bank shop"),
            (&["readers", "resets"], &format!("{read} {reset}"), "all"),
            (&["resets", "shop"], &format!("{edit} {reset}"), "shop"),
            (&["shop-resets", "shop"], &format!("{edit} {reset}"), "shop"),
            // Editing everything is granted by neither, so the first entry counts.
            (&["shop", "readers"], read, "all"),
            // Resets at the bank are granted by neither.
            (&["bank", "shop-resets"], &edit, "bank"),
            (&["readers", "shop", "all"], &format!("{edit} {reset}"), "all"),
        ];
        for (values, roles, applications) in table {
            let expected = Some(((*roles).to_owned(), (*applications).to_owned()));
            assert_eq!(granted(values), expected, "{values:?}");
        }
        assert_eq!(granted(&["cooks"]), None);
        assert_eq!(granted(&[]), None);
    }

    #[test]
    fn errors_name_the_entry_and_the_expected_value() {
        #[rustfmt::skip]
        let table = [
            ("[]", "expected an object such as"),
            ("{}", "expected at least one value"),
            (r#"{"a": {"role": []}}"#, "unknown field `role`"),
            (r#"{"a": {"roles": ["Admin"]}}"#, "\"a\": role \"Admin\": expected one of"),
            (r#"{"a": {"roles": [], "applications": []}}"#, "\"a\" has 0 applications"),
        ];
        for (json, expected) in table {
            let error = ClaimGrants::from_json(json).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
