//! The slot map of a cluster, which says which server holds which slot. It does no I/O.
//!
//! CRC-16 is written by hand, because its five lines cost less than a dependency.

use redis::Value;

use super::super::server::Address;

/// The number of slots of every cluster.
const SLOTS: usize = 16_384;

/// The map from slots to the servers that hold them.
pub(super) struct SlotMap {
    /// The servers that hold slots.
    servers: Vec<Address>,
    /// For each slot, the index of its server in `servers`, or [`NO_SERVER`].
    owners: Vec<u16>,
}

const NO_SERVER: u16 = u16::MAX;

impl Default for SlotMap {
    fn default() -> Self {
        Self { servers: Vec::new(), owners: vec![NO_SERVER; SLOTS] }
    }
}

impl SlotMap {
    /// Parses the reply to `CLUSTER SLOTS`.
    ///
    /// The reply is a list of `[first slot, last slot, [host, port, ..], ..]`, with the primary
    /// before its replicas. A missing host means `default_host`, the host of the server that
    /// replied.
    pub(super) fn parse(reply: &Value, default_host: &str) -> Option<Self> {
        let Value::Array(ranges) = reply else { return None };
        let mut slots = Self::default();
        for range in ranges {
            let Value::Array(fields) = range else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &fields[..]
            else {
                return None;
            };
            let [host, Value::Int(port), ..] = &primary[..] else { return None };
            let host = match host {
                Value::BulkString(text) => std::str::from_utf8(text).ok()?,
                Value::SimpleString(text) => text,
                Value::Nil => "",
                _ => return None,
            };
            let host = if matches!(host, "" | "?") { default_host } else { host };
            let port = u16::try_from(*port).ok()?;
            let index = slots.index_of(&Address { host: host.to_owned(), port });
            let first = usize::try_from(*first).ok()?;
            let last = usize::try_from(*last).ok()?;
            slots.owners.get_mut(first..=last)?.fill(index);
        }
        Some(slots)
    }

    /// Returns the server that holds a slot.
    pub(super) fn owner(&self, slot: u16) -> Option<Address> {
        let index = *self.owners.get(usize::from(slot))?;
        self.servers.get(usize::from(index)).cloned()
    }

    /// Returns the servers that hold slots.
    pub(super) fn servers(&self) -> &[Address] {
        &self.servers
    }

    /// Sets the server that holds a slot.
    pub(super) fn set_owner(&mut self, slot: u16, owner: &Address) {
        let index = self.index_of(owner);
        if let Some(slot) = self.owners.get_mut(usize::from(slot)) {
            *slot = index;
        }
    }

    /// Returns the index of a server. A new server is added to the list.
    fn index_of(&mut self, server: &Address) -> u16 {
        let existing = self.servers.iter().position(|existing| existing == server);
        let index = existing.unwrap_or_else(|| {
            self.servers.push(server.clone());
            self.servers.len() - 1
        });
        u16::try_from(index).unwrap_or(NO_SERVER)
    }
}

/// Returns the slot of a key. If the key has a hash tag, only the tag is hashed.
pub(super) fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16(hashed.as_bytes()) % 16_384
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
mod tests {
    use super::*;

    /// The check value is from the specification. The slots are replies of a server to `CLUSTER
    /// KEYSLOT`.
    #[test]
    fn slots_match_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot_of("foo"), 12_182);
        for key in ["rl:4:default:consumer:{foo}", "{foo}_PER_DAY", "{foo}:60000", "x{foo}{bar}"] {
            assert_eq!(slot_of(key), 12_182, "{key}");
        }
        // An empty pair of braces is not a tag.
        assert_eq!(slot_of("{}foo"), crc16(b"{}foo") % 16_384);
        assert_eq!(slot_of("foo{bar"), crc16(b"foo{bar") % 16_384);
    }

    #[test]
    fn a_map_is_parsed_and_changed() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let range = |from, to, host: &str, port| {
            let server = Value::Array(vec![text(host), Value::Int(port), text("id")]);
            let replica = Value::Array(vec![text("9.9.9.9"), Value::Int(9)]);
            Value::Array(vec![Value::Int(from), Value::Int(to), server, replica])
        };
        let answer = Value::Array(vec![range(0, 99, "10.0.0.1", 1), range(100, 16_383, "", 2)]);
        let mut slots = SlotMap::parse(&answer, "replied").unwrap();
        let address = |host: &str, port| Address { host: host.to_owned(), port };
        let (first, second) = (address("10.0.0.1", 1), address("replied", 2));
        assert_eq!(slots.servers(), [first.clone(), second.clone()]);
        assert_eq!((slots.owner(99), slots.owner(100)), (Some(first), Some(second)));
        let third = address("::1", 3);
        slots.set_owner(99, &third);
        assert_eq!(slots.owner(99), Some(third));

        assert_eq!(SlotMap::default().owner(0), None);
        for invalid in [Value::Nil, Value::Array(vec![Value::Int(1)])] {
            assert!(SlotMap::parse(&invalid, "replied").is_none());
        }
        let beyond = Value::Array(vec![range(0, 16_384, "h", 1)]);
        assert!(SlotMap::parse(&beyond, "replied").is_none());
    }
}
