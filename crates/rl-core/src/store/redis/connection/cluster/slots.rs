//! The map of a cluster: which server holds which slot. No I/O.

use redis::Value;

use super::super::server::Address;

const SLOTS: usize = 16_384;

/// Which server holds which slot.
pub(crate) struct Slots {
    servers: Vec<Address>,
    // For each slot, the place of its server.
    owners: Vec<u16>,
}

const NOBODY: u16 = u16::MAX;

impl Default for Slots {
    fn default() -> Self {
        Self { servers: Vec::new(), owners: vec![NOBODY; SLOTS] }
    }
}

impl Slots {
    /// The answer to `CLUSTER SLOTS`: `[from, to, [host, port, ..], ..]` for each range, the primary
    /// first. A server without a host is on that of the one that was asked.
    pub(crate) fn read(answer: &Value, asked: &str) -> Option<Self> {
        let Value::Array(ranges) = answer else { return None };
        let mut slots = Self::default();
        for range in ranges {
            let Value::Array(fields) = range else { return None };
            let [Value::Int(from), Value::Int(to), Value::Array(primary), ..] = &fields[..] else {
                return None;
            };
            let [host, Value::Int(port), ..] = &primary[..] else { return None };
            let host = match host {
                Value::BulkString(text) => std::str::from_utf8(text).ok()?,
                Value::SimpleString(text) => text,
                Value::Nil => "",
                _ => return None,
            };
            let host = if matches!(host, "" | "?") { asked } else { host };
            let port = u16::try_from(*port).ok()?;
            let place = slots.place(&Address { host: host.to_owned(), port });
            let (from, to) = (usize::try_from(*from).ok()?, usize::try_from(*to).ok()?);
            slots.owners.get_mut(from..=to)?.fill(place);
        }
        Some(slots)
    }

    pub(crate) fn owner(&self, slot: u16) -> Option<Address> {
        let place = *self.owners.get(usize::from(slot))?;
        self.servers.get(usize::from(place)).cloned()
    }

    /// The servers that hold slots.
    pub(crate) fn owners(&self) -> Vec<Address> {
        self.servers.clone()
    }

    pub(crate) fn set(&mut self, slot: u16, owner: &Address) {
        let place = self.place(owner);
        if let Some(slot) = self.owners.get_mut(usize::from(slot)) {
            *slot = place;
        }
    }

    fn place(&mut self, server: &Address) -> u16 {
        let known = self.servers.iter().position(|known| known == server);
        let place = known.unwrap_or_else(|| {
            self.servers.push(server.clone());
            self.servers.len() - 1
        });
        u16::try_from(place).unwrap_or(NOBODY)
    }
}

/// The slot of a key: of its hash tag, if it has one.
pub(crate) fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16(hashed.as_bytes()) % 16_384
}

/// CRC-16 as in XMODEM, which the specification of Redis Cluster asks for.
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

    /// The check value of the specification, and slots that a server told (`CLUSTER KEYSLOT`).
    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot_of("foo"), 12_182);
        for key in ["rl:3:default:consumer:{foo}", "{foo}_PER_DAY", "{foo}:60000", "x{foo}{bar}"] {
            assert_eq!(slot_of(key), 12_182, "{key}");
        }
        // No tag.
        assert_eq!(slot_of("{}foo"), crc16(b"{}foo") % 16_384);
        assert_eq!(slot_of("foo{bar"), crc16(b"foo{bar") % 16_384);
    }

    #[test]
    fn a_map_is_read_and_changed() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let range = |from, to, host: &str, port| {
            let server = Value::Array(vec![text(host), Value::Int(port), text("id")]);
            let replica = Value::Array(vec![text("9.9.9.9"), Value::Int(9)]);
            Value::Array(vec![Value::Int(from), Value::Int(to), server, replica])
        };
        let answer = Value::Array(vec![range(0, 99, "10.0.0.1", 1), range(100, 16_383, "", 2)]);
        let mut slots = Slots::read(&answer, "asked").unwrap();
        let address = |host: &str, port| Address { host: host.to_owned(), port };
        let (first, second) = (address("10.0.0.1", 1), address("asked", 2));
        assert_eq!(slots.owners(), [first.clone(), second.clone()]);
        assert_eq!((slots.owner(99), slots.owner(100)), (Some(first), Some(second)));
        let third = address("::1", 3);
        slots.set(99, &third);
        assert_eq!(slots.owner(99), Some(third));

        assert_eq!(Slots::default().owner(0), None);
        for wrong in [Value::Nil, Value::Array(vec![Value::Int(1)])] {
            assert!(Slots::read(&wrong, "asked").is_none());
        }
        let beyond = Value::Array(vec![range(0, 16_384, "h", 1)]);
        assert!(Slots::read(&beyond, "asked").is_none());
    }
}
