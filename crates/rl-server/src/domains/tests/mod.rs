//! Files of gateways, served by Envoy's service.

mod envoy_examples;
mod imported;
mod limitador_files;
mod reload;
mod sections;

use std::sync::Arc;

use rl_core::adapter::HttpLimiter;
use rl_core::rules::{LiveRules, Rules};
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{MemoryStore, RateLimiter};

use super::compile::compile;
use super::imported::{Imported, NamedText};
use super::rule::Domains;
use super::{envoy_files, limitador_file};
use crate::grpc::EnvoyService;
use crate::grpc::messages::{
    Code, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use crate::service::DecisionService;

/// Envoy's service with a clock that tests set.
struct Server {
    service: EnvoyService,
    clock: Arc<ManualClock>,
}

impl Server {
    fn new(domains: &Domains) -> Self {
        Self::following(&LiveRules::new(compile(domains, Rules::new(), None).unwrap()))
    }

    fn following(rules: &LiveRules) -> Self {
        // The middle of a second, of a minute, of an hour and of a day.
        let noon = Timestamp::from_secs(20_000 * 86_400 + 12 * 3_600 + 30 * 60 + 30);
        let clock = Arc::new(ManualClock::at(noon.plus_micros(500_000)));
        let store = MemoryStore::builder().clock(Arc::clone(&clock)).build();
        let limiter = RateLimiter::builder().rules(rules).store(store).build().unwrap();
        let service = EnvoyService::new(DecisionService::new(HttpLimiter::new(limiter)));
        Self { service, clock }
    }

    async fn call(&self, domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitResponse {
        let descriptors = descriptors.iter().map(|entries| {
            let entries = entries.iter();
            let entries = entries.map(|(key, value)| Entry::new(key, value));
            RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
        });
        let request = RateLimitRequest {
            domain: domain.to_owned(),
            descriptors: descriptors.collect(),
            hits_addend: 0,
        };
        self.service.should_rate_limit(request).await.unwrap()
    }

    /// Returns how many of `attempts` requests in a row are allowed, before the first denial.
    async fn allowed(
        &self,
        domain: &str,
        descriptors: &[&[(&str, &str)]],
        attempts: usize,
    ) -> usize {
        for allowed in 0..attempts {
            if self.call(domain, descriptors).await.overall_code() != Code::Ok {
                return allowed;
            }
        }
        attempts
    }
}

fn text(name: &str, text: &str) -> NamedText {
    NamedText { name: name.to_owned(), text: text.to_owned() }
}

fn envoy(file: &str) -> Imported {
    envoy_files::read(&[text("edge.yaml", file)], false).unwrap()
}

fn envoy_error(file: &str) -> String {
    envoy_files::read(&[text("edge.yaml", file)], false).unwrap_err()
}

fn limitador(file: &str) -> Imported {
    limitador_file::read(&text("limits.yaml", file)).unwrap()
}

fn limitador_error(file: &str) -> String {
    limitador_file::read(&text("limits.yaml", file)).unwrap_err()
}
