use std::fmt;

use super::InvalidSetting;
use crate::webhook::{InvalidWebhook, Webhooks};

/// The receivers of webhooks, and the secret with which deliveries are signed.
#[derive(Clone)]
pub(super) struct WebhookSettings {
    urls: Vec<String>,
    secret: String,
}

impl WebhookSettings {
    /// Reads the settings; `None` if there are no receivers.
    pub(super) fn read(
        read: impl Fn(&'static str) -> Option<String>,
    ) -> Result<Option<Self>, InvalidSetting> {
        match (read("RL_ADMIN_WEBHOOK_URLS"), read("RL_ADMIN_WEBHOOK_SECRET")) {
            (None, None) => Ok(None),
            (Some(urls), Some(secret)) => {
                let urls = urls.split(',').map(|url| url.trim().to_owned()).collect();
                Ok(Some(Self { urls, secret }))
            }
            _ => {
                let both = "RL_ADMIN_WEBHOOK_URLS and RL_ADMIN_WEBHOOK_SECRET";
                Err(InvalidSetting::new(both, "expected both, or none"))
            }
        }
    }

    /// Starts to deliver events.
    pub(super) fn start(&self) -> Result<Webhooks, InvalidSetting> {
        let builder = Webhooks::builder(&self.secret);
        let builder = self.urls.iter().fold(builder, |builder, url| builder.url(url));
        let both = "RL_ADMIN_WEBHOOK_URLS, RL_ADMIN_WEBHOOK_SECRET";
        let invalid = |error: InvalidWebhook| InvalidSetting::new(both, error.to_string());
        builder.start().map_err(invalid)
    }
}

impl fmt::Debug for WebhookSettings {
    /// Omits the secret, and the paths of receivers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookSettings").field("urls", &self.urls.len()).finish_non_exhaustive()
    }
}
