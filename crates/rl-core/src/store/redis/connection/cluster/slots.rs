//! The slot map of a cluster, which contains the server of each slot. No I/O.

use redis::Value;

use super::super::server::Address;
use crate::store::redis::encoding::placement::SLOTS;

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
        Self { servers: Vec::new(), owners: vec![NO_SERVER; usize::from(SLOTS)] }
    }
}

impl SlotMap {
    /// Parses the reply to `CLUSTER SLOTS`.
    ///
    /// The reply is a list of `[first slot, last slot, [host, port, ..], ..]`, with the primary
    /// before its replicas. A missing host means `default_host`, the host of the server that
    /// replied. Returns `None` if the reply has another form.
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

#[cfg(test)]
mod tests {
    use super::*;

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
