//! The placement of subjects' keys in the slots of a cluster. No I/O.
//!
//! A script may name keys of one slot only. On a cluster, the checks of several subjects therefore
//! share a call only if the subjects share a slot:
//!
//! ```text
//! slots       0 ──────────── 5461 ──────────── 10922 ──────────── 16383
//! primaries   │      A       │       B         │        C         │
//! 6 groups        0      1       2        3        4         5          one slot each
//!                 ▲
//! subject ─ BLAKE3 ─ group 0 ─ {9918}: the tag whose slot is the middle of the first sixth
//! ```

use std::sync::Arc;

use super::Layout;
use crate::model::Subject;
use crate::store::Namespace;

/// The choice of slots for the keys of subjects.
#[derive(Clone, Debug)]
pub(crate) enum Placement {
    /// One server holds all keys.
    OneServer,
    /// Each subject has a hash tag of its own.
    SubjectSlots,
    /// The subjects of a group have one hash tag.
    GroupSlots(Arc<SlotGroups>),
}

/// A division of all subjects into groups. All keys of a group are in one slot.
#[derive(Debug)]
pub(crate) struct SlotGroups {
    /// The hash tag of each group.
    tags: Vec<String>,
    /// The key of the hash that assigns subjects to groups.
    hash_key: [u8; 32],
}

impl Placement {
    /// Creates the placement of the keys with this prefix. `groups` is the number of slot groups.
    ///
    /// # Errors
    ///
    /// Returns the reason why servers or layout do not support these slot groups.
    pub(crate) fn new(
        is_cluster: bool,
        groups: Option<u32>,
        layout: Layout,
        prefix: &str,
    ) -> Result<Self, &'static str> {
        match groups.map(u16::try_from) {
            None if is_cluster => Ok(Self::SubjectSlots),
            None => Ok(Self::OneServer),
            Some(_) if !is_cluster => Err("slot_groups is a setting of a cluster only"),
            Some(_) if layout == Layout::Readable => Err("slot_groups needs the packed layout"),
            Some(Ok(groups @ 1..=SlotGroups::MAX)) => {
                Ok(Self::GroupSlots(Arc::new(SlotGroups::new(groups, prefix))))
            }
            Some(_) => Err("slot_groups must be at least 1 and at most 16384"),
        }
    }

    /// Returns whether the servers are a cluster.
    pub(crate) const fn is_cluster(&self) -> bool {
        !matches!(self, Self::OneServer)
    }

    /// Returns the groups, if subjects have groups.
    pub(crate) fn groups(&self) -> Option<&SlotGroups> {
        if let Self::GroupSlots(groups) = self { Some(groups) } else { None }
    }

    /// Returns the slot group of a subject, or 0 if there are no groups. Only subjects of one group
    /// share a call.
    pub(crate) fn group_of(&self, namespace: &Namespace, subject: &Subject) -> u16 {
        self.groups().map_or(0, |groups| groups.group_of(namespace, subject))
    }
}

impl SlotGroups {
    /// The largest number of groups: one for each slot.
    pub(crate) const MAX: u16 = SLOTS;

    /// Creates `count` groups, from 1 to [`MAX`](Self::MAX), for the keys with this prefix.
    ///
    /// All slots are divided into `count` equal parts, one for each group. The slot of a group is
    /// the one in the middle of its part. The search for tags with these slots takes a few
    /// milliseconds at most.
    pub(crate) fn new(count: u16, prefix: &str) -> Self {
        let mut group_of_slot = vec![None; usize::from(SLOTS)];
        for group in 0..count {
            group_of_slot[usize::from(middle_slot(group, count))] = Some(group);
        }
        let mut tags = vec![String::new(); usize::from(count)];
        let mut missing = count;
        let mut numbers = 0_u32..;
        // The search ends, because for every slot there is a number of at most six digits that, as
        // a hash tag, leads to this slot. A test checks this.
        while missing > 0
            && let Some(number) = numbers.next()
        {
            let tag = number.to_string();
            if let Some(group) = group_of_slot[usize::from(slot_of_tag(&tag))].take() {
                tags[usize::from(group)] = tag;
                missing -= 1;
            }
        }
        let hash_key = blake3::derive_key("rl-core 2026 group of a subject", prefix.as_bytes());
        Self { tags, hash_key }
    }

    /// Returns the number of groups.
    pub(crate) fn count(&self) -> usize {
        self.tags.len()
    }

    /// Returns the group of a subject, which is the same in every process.
    pub(crate) fn group_of(&self, namespace: &Namespace, subject: &Subject) -> u16 {
        let mut hasher = blake3::Hasher::new_keyed(&self.hash_key);
        for part in [namespace.as_str(), ":", subject.realm().as_str(), ":"] {
            hasher.update(part.as_bytes());
        }
        let hash = hasher.update(subject.id().as_bytes()).finalize();
        let [a, b, c, d, ..] = *hash.as_bytes();
        // The product is less than `count` × 2^32, so the result is below `count`.
        let scaled = u64::from(u32::from_be_bytes([a, b, c, d])) * self.tags.len() as u64;
        u16::try_from(scaled >> 32).unwrap_or_default()
    }

    /// Returns the hash tag of a subject's group.
    pub(crate) fn tag_of(&self, namespace: &Namespace, subject: &Subject) -> &str {
        &self.tags[usize::from(self.group_of(namespace, subject))]
    }
}

/// Returns the slot in the middle of a group's part, if all slots are divided into `count` equal
/// parts.
const fn middle_slot(group: u16, count: u16) -> u16 {
    let (group, count, slots) = (group as u32, count as u32, SLOTS as u32);
    ((2 * group + 1) * slots / (2 * count)) as u16
}

/// The number of slots of every cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// Returns the slot of a key. If the key has a hash tag, only the tag is hashed.
#[cfg(feature = "redis-cluster")]
pub(crate) fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key);
    slot_of_tag(hashed)
}

/// Returns the slot of all keys with a hash tag.
fn slot_of_tag(tag: &str) -> u16 {
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
mod tests {
    use super::*;

    #[test]
    fn groups_are_spread_evenly_over_the_slots() {
        for count in [1, 2, 3, 6, 7, 12, 48, 1_000, 10_000, SlotGroups::MAX] {
            let groups = SlotGroups::new(count, "rl");
            assert_eq!(groups.count(), usize::from(count));
            let slots: Vec<u16> = groups.tags.iter().map(|tag| slot_of_tag(tag)).collect();
            assert!(slots.is_sorted_by(|one, next| one < next), "{count} groups: {slots:?}");
            let distances = slots.windows(2).map(|pair| pair[1] - pair[0]);
            let mean = SLOTS / count;
            assert!(distances.into_iter().all(|distance| distance - mean <= 1), "{count} groups");
            assert!(groups.tags.iter().all(|tag| (1..=6).contains(&tag.len())), "{count} groups");
            // Primaries that hold equal parts of the slots hold nearly equal numbers of groups.
            for share in [0..5_461, 5_461..10_922, 10_922..SLOTS] {
                let held = slots.iter().filter(|slot| share.contains(slot)).count();
                assert!(held.abs_diff(usize::from(count) / 3) <= 1, "{count} groups: {held}");
            }
        }
    }

    #[test]
    fn subjects_are_spread_evenly_over_the_groups() {
        let groups = SlotGroups::new(12, "rl");
        let namespace = Namespace::default();
        let mut sizes = [0_u32; 12];
        for number in 0..12_000 {
            let subject = Subject::consumer(&format!("consumer-{number}"));
            sizes[usize::from(groups.group_of(&namespace, &subject))] += 1;
        }
        // These bounds are six standard deviations from the mean of 1 000.
        assert!(sizes.iter().all(|size| (820..=1_180).contains(size)), "{sizes:?}");
    }

    /// If these values changed, every counter would start again.
    #[test]
    fn groups_of_subjects_never_change() {
        let groups = SlotGroups::new(12, "rl");
        let namespace = Namespace::default();
        let of = |subject: Subject| groups.tag_of(&namespace, &subject).to_owned();
        let tags = [
            of(Subject::consumer("acme")),
            of(Subject::user("acme")),
            of(Subject::digest(crate::model::Realm::Key, [0xab; 16])),
        ];
        assert_eq!(tags, ["2481", "506", "20959"]);
        let other = SlotGroups::new(12, "secret");
        let differs = |number: u32| {
            let subject = Subject::consumer(&number.to_string());
            groups.group_of(&namespace, &subject) != other.group_of(&namespace, &subject)
        };
        assert!((0..20).any(differs), "the prefix is part of the hash");
    }

    /// The check value is from the specification. The slots are replies of a server to `CLUSTER
    /// KEYSLOT`.
    #[cfg(feature = "redis-cluster")]
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
