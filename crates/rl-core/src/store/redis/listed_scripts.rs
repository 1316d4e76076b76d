//! Lists of scripts, for servers into which they are loaded ahead of the first request.

use super::encoding::policy::PolicyEncoding;
use super::scripts::{self, Purpose, Script};
use super::{Layout, RedisStore};
use crate::policy::Policy;

impl RedisStore {
    /// Returns the scripts of a layout that decide these policies, for operators who load them
    /// ahead of the service, or for [`preload`](super::RedisStoreBuilder::preload).
    ///
    /// Policies whose limits are of the same kinds share scripts. A store runs the scripts of the
    /// first 64 combinations of kinds that it decides. Other combinations, and all operations
    /// except checks and refunds, need only the scripts that this function returns without any
    /// policy.
    pub fn scripts<'a>(
        layout: Layout,
        policies: impl IntoIterator<Item = &'a Policy>,
    ) -> Vec<&'static Script> {
        let mut listed = scripts::of_layout(layout);
        for policy in policies {
            add(Purpose::of_layout(layout), [policy], &mut listed);
        }
        listed
    }

    /// Returns the scripts of the packed layout that decide requests of several parts. Each request
    /// is the list of the policies of its parts, in their order: one policy for each
    /// [rule](crate::rules) that matches, in the order of the rules.
    ///
    /// Requests whose policies are of the same kinds share scripts. A store runs these scripts for
    /// the first 64 lists of kinds that it decides. Other requests need only the scripts that
    /// [`scripts`](Self::scripts) returns without any policy.
    ///
    /// ```
    /// use rl_core::{Limit, Policy, RedisStore};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (key, fleet) = (Policy::new([Limit::per_minute(9)])?, Policy::new([Limit::per_second(90)])?);
    /// let scripts = RedisStore::scripts_of_parts([vec![&key, &fleet], vec![&key]]);
    /// assert!(scripts.iter().all(|script| script.name().contains("fixed_window")));
    /// # Ok(()) }
    /// ```
    pub fn scripts_of_parts<'a, P>(requests: impl IntoIterator<Item = P>) -> Vec<&'static Script>
    where
        P: IntoIterator<Item = &'a Policy>,
    {
        let mut listed = Vec::new();
        for request in requests {
            let policies: Vec<_> = request.into_iter().collect();
            let purposes = match policies[..] {
                [_] => Purpose::of_layout(Layout::Packed),
                _ => &[Purpose::Parts],
            };
            add(purposes, policies, &mut listed);
        }
        listed
    }
}

/// Adds the scripts for parts under these policies that are not listed yet.
fn add<'a>(
    purposes: &[Purpose],
    policies: impl IntoIterator<Item = &'a Policy>,
    listed: &mut Vec<&'static Script>,
) {
    let shapes = policies.into_iter().map(|policy| PolicyEncoding::new(policy).script_shape());
    let shapes: Vec<_> = shapes.collect();
    for script in purposes.iter().filter_map(|purpose| scripts::of_shapes(*purpose, &shapes)) {
        if !listed.iter().any(|known| known.sha() == script.sha()) {
            listed.push(script);
        }
    }
}
