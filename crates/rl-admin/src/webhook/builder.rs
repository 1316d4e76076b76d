use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rl_core::time::{Clock, SystemClock};

use super::Webhooks;
use super::bursts::BurstThreshold;
use super::delivery::Delivering;
use super::receiver::Receiver;
use super::signature::SigningKey;

/// The settings of [`Webhooks`].
#[derive(Clone)]
#[must_use]
pub struct WebhooksBuilder {
    secret: Vec<u8>,
    urls: Vec<String>,
    queue: usize,
    attempts: u32,
    timeout: Duration,
    backoff: Duration,
    burst: BurstThreshold,
    is_near_limit_sent: bool,
    clock: Arc<dyn Clock>,
}

impl WebhooksBuilder {
    pub(super) fn new(secret: &[u8]) -> Self {
        Self {
            secret: secret.to_vec(),
            urls: Vec::new(),
            queue: 1_000,
            attempts: 6,
            timeout: Duration::from_secs(5),
            backoff: Duration::from_secs(1),
            burst: BurstThreshold { denials: 1_000, seconds: 60 },
            is_near_limit_sent: false,
            clock: Arc::new(SystemClock),
        }
    }

    /// Adds a receiver. Each receiver has its own queue and its own task.
    pub fn url(mut self, url: &str) -> Self {
        self.urls.push(url.to_owned());
        self
    }

    /// Sets the number of events that may wait for each receiver. Further ones are dropped.
    /// Defaults to 1 000.
    pub fn queue(mut self, events: usize) -> Self {
        self.queue = events.max(1);
        self
    }

    /// Sets the number of attempts to deliver an event, and the time limit of each. Defaults to 6
    /// attempts of 5 seconds.
    pub fn attempts(mut self, attempts: u32, timeout: Duration) -> Self {
        (self.attempts, self.timeout) = (attempts.max(1), timeout);
        self
    }

    /// Sets the pause after the first failed attempt. The pause doubles after each further failure,
    /// up to a minute. Up to half of each pause is subtracted at random. Defaults to one second.
    pub fn backoff(mut self, first: Duration) -> Self {
        self.backoff = first;
        self
    }

    /// Sets when a burst begins: after `denials` denials in the time `within`. Defaults to 1 000
    /// denials in a minute. The time is rounded up to seconds, and is an hour at most.
    pub fn denial_burst(mut self, denials: u64, within: Duration) -> Self {
        let seconds = within.as_secs() + u64::from(within.subsec_nanos() > 0);
        let seconds = usize::try_from(seconds.clamp(1, 3_600)).unwrap_or(3_600);
        self.burst = BurstThreshold { denials: denials.max(1), seconds };
        self
    }

    /// Sets whether `near_limit` is sent. Defaults to `false`. For limits with a period below an
    /// hour, [most of these events](super#events) are left out.
    ///
    /// The limiter must then observe each decision. This adds a few hundred nanoseconds to a
    /// decision in memory.
    pub const fn near_limit(mut self, is_sent: bool) -> Self {
        self.is_near_limit_sent = is_sent;
        self
    }

    /// Sets the clock of the timestamps. Defaults to the clock of the system.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Starts to deliver events.
    ///
    /// # Errors
    ///
    /// Returns an error if the secret has fewer than 16 bytes, if there is no URL, or if a URL is
    /// not valid. The error quotes none of them.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub fn start(self) -> Result<Webhooks, InvalidWebhook> {
        let key = SigningKey::new(&self.secret);
        let key =
            key.ok_or(InvalidWebhook("secret of webhooks: expected at least 16 bytes".into()))?;
        if self.urls.is_empty() {
            return Err(InvalidWebhook("webhooks: expected at least one URL".into()));
        }
        let receiver = |(place, url): (usize, &String)| {
            Receiver::parse(url)
                .map_err(|expected| InvalidWebhook(format!("webhook {}: {expected}", place + 1)))
        };
        let receivers = self.urls.iter().enumerate().map(receiver).collect::<Result<_, _>>()?;
        let delivering = Delivering {
            key,
            attempts: self.attempts,
            timeout: self.timeout,
            backoff: self.backoff,
            clock: self.clock,
        };
        Ok(Webhooks::start(receivers, delivering, self.queue, self.burst, self.is_near_limit_sent))
    }
}

// Omits the secret and the URLs.
impl fmt::Debug for WebhooksBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhooksBuilder")
            .field("receivers", &self.urls.len())
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

/// The error for invalid settings of webhooks. It quotes neither the secret nor a URL.
#[derive(Clone, PartialEq, Eq)]
pub struct InvalidWebhook(String);

rl_core::debug_as_display!(InvalidWebhook);

impl fmt::Display for InvalidWebhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidWebhook {}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn errors_quote_neither_the_secret_nor_the_url() {
        let long = "a secret of 32 random characters";
        for (secret, url, message) in [
            ("short", "https://a.example/", "secret of webhooks: expected at least 16 bytes"),
            (
                long,
                "ftp://a.example/path-secret",
                "webhook 1: expected a URL such as https://hooks",
            ),
        ] {
            let builder = Webhooks::builder(secret).url(url);
            assert!(!format!("{builder:?}").contains("example"));
            let error = builder.start().unwrap_err().to_string();
            assert!(error.starts_with(message) && !error.contains("path-secret"), "{error}");
        }
        let none = Webhooks::builder(long).start().unwrap_err();
        assert_eq!(none.to_string(), "webhooks: expected at least one URL");
    }
}
