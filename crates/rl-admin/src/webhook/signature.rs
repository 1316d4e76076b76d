use std::fmt::{self, Write};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The secret with which deliveries are signed.
#[derive(Clone)]
pub(super) struct SigningKey(Hmac<Sha256>);

impl SigningKey {
    /// Creates the key of a secret of at least 16 bytes.
    pub(super) fn new(secret: &[u8]) -> Option<Self> {
        let is_long = secret.len() >= 16;
        is_long.then(|| Hmac::new_from_slice(secret).ok().map(Self)).flatten()
    }

    /// Returns the value of the signature header.
    pub(super) fn sign(&self, timestamp: &str, body: &[u8]) -> String {
        let mut mac = self.0.clone();
        mac.update(timestamp.as_bytes());
        mac.update(b".");
        mac.update(body);
        mac.finalize().into_bytes().iter().fold("v1=".to_owned(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

// Omits the key.
impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected digits are the output of the `openssl` command in the documentation of
    /// `webhook`.
    #[test]
    fn signatures_cover_the_timestamp_and_the_body() {
        let key = SigningKey::new(b"a secret of 32 random characters").unwrap();
        let signature = key.sign("1795440840", br#"{"event":"store_failing"}"#);
        assert_eq!(
            signature,
            "v1=f42eea7d1d934ba34a91c3ceef5a405d4def4e8e3c3dd8510d9400e0f9d6bc49"
        );
        assert_ne!(key.sign("1795440841", br#"{"event":"store_failing"}"#), signature);
        assert!(SigningKey::new(b"short").is_none());
    }
}
