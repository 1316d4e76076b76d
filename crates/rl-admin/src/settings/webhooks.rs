use rl_admin::webhook::{InvalidWebhook, Webhooks};

use super::invalid::InvalidSetting;

/// The receivers of webhooks, and the secret with which deliveries are signed.
pub(crate) struct WebhookSettings {
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
                let both =
                    "RL_ADMIN_WEBHOOK_URLS and RL_ADMIN_WEBHOOK_SECRET: expected both, or none";
                Err(InvalidSetting(both.to_owned()))
            }
        }
    }

    /// Starts to deliver events.
    pub(crate) fn start(&self) -> Result<Webhooks, String> {
        let builder = Webhooks::builder(&self.secret);
        let builder = self.urls.iter().fold(builder, |builder, url| builder.url(url));
        let invalid = |error: InvalidWebhook| {
            format!("RL_ADMIN_WEBHOOK_URLS, RL_ADMIN_WEBHOOK_SECRET: {error}")
        };
        builder.start().map_err(invalid)
    }
}
