//! Computes the slot of a cluster that holds a key.
//!
//! CRC-16 is written by hand, because its five lines cost less than a dependency.

/// The number of slots of every cluster.
pub(super) const SLOTS: u16 = 16_384;

/// Returns the slot of a key. If the key has a hash tag, only the tag is hashed.
#[cfg(feature = "redis-cluster")]
pub(super) fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key);
    slot_of_tag(hashed)
}

/// Returns the slot of all keys with a hash tag.
pub(super) fn slot_of_tag(tag: &str) -> u16 {
    crc16(tag.as_bytes()) % SLOTS
}

/// Computes the CRC-16 of the specification of Redis Cluster, known as XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
#[cfg(feature = "redis-cluster")]
mod tests {
    use super::*;

    /// The check value is from the specification. The slots are replies of a server to `CLUSTER
    /// KEYSLOT`.
    #[test]
    fn slots_match_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot_of("foo"), 12_182);
        for key in ["rl:6:default:consumer:{foo}", "{foo}_PER_DAY", "{foo}:60000", "x{foo}{bar}"] {
            assert_eq!(slot_of(key), 12_182, "{key}");
        }
        // An empty pair of braces is not a tag.
        assert_eq!(slot_of("{}foo"), crc16(b"{}foo") % SLOTS);
        assert_eq!(slot_of("foo{bar"), crc16(b"foo{bar") % SLOTS);
    }
}
