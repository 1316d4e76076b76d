//! Rules: which subjects a request is counted under, and with which limits.
//!
//! A request belongs to several subjects at once: its API key, the address that it comes from, and
//! the fleet as a whole. A [`Rule`] sets which requests it matches, which subject it counts, and
//! the limits of that subject. A request is decided under all [`Rules`] that match it, in one step:
//! **all are charged, or none**.
//!
//! # Example
//!
//! ```
//! use std::collections::HashSet;
//!
//! use rl_core::adapter::HttpLimiter;
//! use rl_core::key::{ApiKey, ClientAddress, KeyExtractor, KeySecret};
//! use rl_core::rules::{Rule, Rules};
//! use rl_core::{Limit, RateLimiter, Realm};
//!
//! let secret = KeySecret::new(b"16 bytes or more, from your configuration")?;
//! let sold = HashSet::from([secret.subject(Realm::Key, b"key-of-alice")]);
//! let keys = ApiKey::header("x-api-key", secret)?
//!     .known(move |key| sold.contains(key)); // a client cannot invent keys
//! let clients = Rule::named("clients")
//!     .per(keys)
//!     .per(ClientAddress::default()) // for requests without a known key
//!     .limits([Limit::per_second(10), Limit::per_day(5_000)])
//!     .tier("pro", [Limit::per_second(100)]);
//! let login = Rule::named("login")
//!     .on("POST", "/login")
//!     .per(ClientAddress::default())
//!     .limit(Limit::per_minute(5));
//! let fleet = Rule::named("fleet").limit(Limit::per_second(5_000));
//!
//! let rules = Rules::new().rule(clients).rule(login).rule(fleet);
//! let limiter = RateLimiter::builder().rules(rules).build()?;
//! // Or `RateLimitLayer::new(limiter)` of rl-tower, or `RateLimit::new(limiter)` of rl-actix.
//! let http = HttpLimiter::new(limiter);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How a request is decided
//!
//! 1. An exempt request is not counted, and neither is one that no rule matches.
//! 2. Each rule that matches finds its subject with the first of its extractors that finds a key. A
//!    rule without extractors counts all requests together.
//! 3. The limits are those of the client's [`Tier`](crate::key::Tier), or else those of the rule.
//!    The cost may differ from rule to rule.
//! 4. If one rule denies the request, no counter changes. A rule in [shadow](Rule::shadow) denies
//!    nothing.
//! 5. The message and single-valued headers describe the [disclosed](Rule::disclosed) rule that
//!    denies for the longest time, or else the one with the fewest units left. `Retry-After` is the
//!    longest wait of all rules that deny. Lists describe the limits of all disclosed rules.
//! 6. Clients read a hash of the name of a rule, such as `r3f2a1/minute`, unless the service
//!    [discloses](Rule::name_disclosed) the name.
//!
//! Counters belong to the name of the rule and the subject. A rule that gets another name begins
//! with new counters.
//!
//! # How many rules
//!
//! The time of a request does not grow with the number of rules, as long as they have paths or
//! hosts of their own: an index finds the rules that match. Rules that differ only by their method,
//! headers or addresses are compared with each request that reaches their path and host.
//!
//! **At most eight enforced rules may match one request.** If a ninth matches, the request is
//! rejected with 503 ([`DenialReason::TooManyRules`](crate::denial::DenialReason::TooManyRules)),
//! and a line in the log names the rules. More such requests within a minute are not logged. A rule
//! in shadow gives way to an enforced one, which is logged too. Limiters and files refuse more
//! than eight rules that count every request. At most 32 rules read the key of a request, also if
//! they find none: a further enforced rule rejects it with 503, and a further one in shadow is left
//! out. Both are logged likewise. A request that is rejected for these reasons is not counted.
//!
//! # Files
//!
//! With the feature `rules-file`, rules can be in a file: `RulesFile` follows its changes, and
//! `Rules::from_file` reads it once. YAML and TOML have the same structure, and `json_schema`
//! describes it.
//!
//! ```yaml
//! proxies: [10.0.0.0/8]
//! keys: { from: ["header:x-api-key", bearer], file: keys.yaml }
//! exempt: [{ path: /health }]
//! rules:
//!   clients: { per: [key, address], limits: [10/second, 5000/day:clock], tiers: { pro: [100/second] } }
//!   login:   { match: { method: POST, path: /login }, per: address, limits: 5/minute }
//!   export:  { match: { path: "/export/{name}" }, per: address, limits: 60/hour, cost: 20 }
//!   fleet:   { limits: 5000/second }
//! ```
//!
//! `per: key` counts only the keys that `keys.yaml` lists by their SHA-256 (`printf %s KEY |
//! sha256sum`), each under its name and with the limits of its tier. A client that invents keys is
//! counted by its address:
//!
//! ```yaml
//! - { sha256: d16a80956c32f3f5fb979bea408abac8c3eef6c54ecb234279e337146cf87b47, name: alice, tier: pro }
//! ```
//!
//! Limits may come from a source that the service registers, such as the records of a database:
//! `limits: records`. A cost may be the number in a header of the response:
//! `cost: { response_header: x-cost, estimate: 20 }`.
//!
//! # Settings of a layer
//!
//! The settings of a layer apply to rules that do not set them: the cost, what happens over the
//! limits, and what happens to requests without a key. The key of the layer does not apply.

#[cfg(feature = "rules-file")]
mod file;
mod host;
mod invalid_rules;
#[cfg(feature = "rules-file")]
mod live_rules;
mod match_index;
mod over_limit;
mod path_forms;
mod path_templates;
mod pseudonyms;
mod request_match;
mod request_paths;
mod rule;
mod rule_list;
mod rule_set;
mod rule_source;
mod selector;
#[cfg(test)]
mod tests;
mod valid_rule;

#[cfg(feature = "rules-file")]
#[cfg_attr(docsrs, doc(cfg(feature = "rules-file")))]
pub use file::{
    RefusedRule, RulesFile, RulesFileBuilder, RulesFileError, RulesFileStatus, StoredRule,
    json_schema,
};
pub use invalid_rules::{InvalidMatch, InvalidRules};
#[cfg(feature = "rules-file")]
#[cfg_attr(docsrs, doc(cfg(feature = "rules-file")))]
pub use live_rules::LiveRules;
pub use over_limit::{MissingKey, OverLimit};
pub use request_match::Match;
pub(crate) use rule::RequestCost;
pub use rule::Rule;
pub use rule_list::Rules;
pub use rule_set::CountingRule;
pub(crate) use rule_set::{OfRule, RequestParts, RuleSet};
pub(crate) use rule_source::ActiveRules;
pub use rule_source::RuleSource;
pub use selector::{RuleSelector, SelectedRule};
pub(crate) use valid_rule::{Defaults, Uncounted};
