use rl_core::store::{DecideRequest, Mode, Namespace, Part, Store};
use rl_core::{Cost, Decision, Policy, RedisStore, Subject};

use super::fixtures::{SUBJECTS, subjects};

/// Our store, and requests of a key, its address, and the fleet of all keys.
pub(super) struct PartsCall {
    store: RedisStore,
    namespaces: [Namespace; 3],
    key: Policy,
    address: Option<Policy>,
    fleet: Policy,
    /// Whether each part is decided by its own request, as with nested limiters.
    is_nested: bool,
    subjects: Vec<Subject>,
    global: Subject,
}

impl PartsCall {
    /// Creates calls that decide a key and the fleet.
    pub(super) fn new(store: RedisStore, key: Policy, fleet: Policy) -> Self {
        let rule = |name| Namespace::default().rule(name).expect("a valid name");
        Self {
            store,
            namespaces: ["key", "address", "fleet"].map(rule),
            key,
            address: None,
            fleet,
            is_nested: false,
            subjects: subjects(SUBJECTS),
            global: Subject::global(),
        }
    }

    /// Adds a third part, the address of the key.
    pub(super) fn with_address(self, policy: Policy) -> Self {
        Self { address: Some(policy), ..self }
    }

    /// Makes each part a request of its own, as with nested limiters.
    pub(super) fn nested(self) -> Self {
        Self { is_nested: true, ..self }
    }

    /// Makes a request for this key. Returns whether it is allowed.
    pub(super) async fn allows(&self, key: usize) -> bool {
        let [of_keys, of_addresses, of_fleet] = &self.namespaces;
        let (subject, one) = (&self.subjects[key], Cost::ONE);
        let mut parts = vec![Part::new(subject, &self.key, one).with_namespace(of_keys)];
        let address = self.address.as_ref();
        parts.extend(
            address.map(|policy| Part::new(subject, policy, one).with_namespace(of_addresses)),
        );
        parts.push(Part::new(&self.global, &self.fleet, one).with_namespace(of_fleet));
        if !self.is_nested {
            return self.decide(&parts).await.is_allowed();
        }
        let mut is_allowed = true;
        for part in &parts {
            is_allowed &= self.decide(std::slice::from_ref(part)).await.is_allowed();
        }
        is_allowed
    }

    async fn decide(&self, parts: &[Part<'_>]) -> Decision {
        let request = DecideRequest::new(&self.namespaces[0], parts, Mode::Check);
        self.store.decide(request).await.expect("the server is up")
    }
}
