use rl_core::time::Timestamp;
use rl_core::{Realm, Subject};
use serde::{Deserialize, Serialize};

use crate::last_hour::{DeniedSubject, LastHour, STEPS};

/// The number of subjects in a note.
const SUBJECTS: usize = 20;

/// The largest length of a name in bytes.
const MAX_NAME: usize = 256;

/// The largest time in seconds that can be shown.
const LATEST: u64 = 253_402_300_799;

/// The last minute of one instance.
///
/// The ids of subjects are in clear, as they are in the names of counters. Secrets are not among
/// them: API keys are counted under a keyed hash.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct InstanceNote {
    pub(super) instance: String,
    /// The time of the note, in seconds.
    pub(super) at: u64,
    pub(super) per_second: f64,
    pub(super) denied_per_second: f64,
    /// The number of subjects that were denied in the last minute.
    pub(super) limited: usize,
    denied: Vec<DeniedNote>,
}

/// A subject that was denied in the last minute.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct DeniedNote {
    realm: String,
    /// The id, or 32 hexadecimal digits if it is a digest.
    id: String,
    is_digest: bool,
    denied_by: Option<(String, String)>,
    since: u64,
    last: u64,
    /// The denials in the steps until `at`. Zeros at the beginning are left out.
    steps: Vec<u64>,
}

impl InstanceNote {
    /// Describes the last minute of this process.
    pub(super) fn of(name: &str, last_hour: &LastHour) -> Self {
        let minute = last_hour.last_minute();
        Self {
            instance: name.to_owned(),
            at: minute.now.as_micros() / 1_000_000,
            per_second: minute.per_second,
            denied_per_second: minute.denied_per_second,
            limited: minute.denied.len(),
            denied: minute.denied.iter().take(SUBJECTS).map(DeniedNote::of).collect(),
        }
    }

    /// Returns the text, which has one line.
    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses the note of an instance. The text comes from the store, so anyone with access to its
    /// server may have written it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let note: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let rates = [note.per_second, note.denied_per_second];
        let are_rates = rates.iter().all(|rate| (0.0..1e12).contains(rate));
        let is_valid = |denied: &DeniedNote| {
            let names = denied.denied_by.iter().flat_map(|(rule, limit)| [rule, limit]);
            let fits = |name: &String| name.len() <= MAX_NAME;
            let are_names = names.chain([&denied.realm, &denied.id]).all(fits);
            let are_counts = denied.steps.iter().all(|count| *count < 1 << 53);
            let are_steps = denied.steps.len() <= STEPS && are_counts;
            let are_times = denied.since <= LATEST && denied.last <= LATEST;
            are_names && are_steps && are_times && denied.subject().is_some()
        };
        let are_subjects = note.denied.len() <= SUBJECTS && note.denied.iter().all(is_valid);
        let is_small = note.instance.len() <= MAX_NAME && note.at <= LATEST;
        if !(are_rates && are_subjects && is_small && note.limited <= 1_000) {
            return Err("a number or a name is out of range".to_owned());
        }
        Ok(note)
    }

    /// Returns the denied subjects.
    pub(super) fn subjects(&self) -> impl Iterator<Item = DeniedSubject> + '_ {
        let of = |note: &DeniedNote| {
            let mut steps = vec![0; STEPS.saturating_sub(note.steps.len())];
            steps.extend(&note.steps);
            Some(DeniedSubject {
                subject: note.subject()?,
                denied_by: note.denied_by.clone(),
                since: Timestamp::from_secs(note.since),
                last: Timestamp::from_secs(note.last),
                steps,
            })
        };
        self.denied.iter().filter_map(of)
    }
}

impl DeniedNote {
    fn of(denied: &DeniedSubject) -> Self {
        let DeniedSubject { subject, denied_by, since, last, steps } = denied;
        Self {
            realm: subject.realm().as_str().to_owned(),
            id: subject.id().to_string(),
            is_digest: subject.id().as_text().is_none(),
            denied_by: denied_by.clone(),
            since: since.as_micros() / 1_000_000,
            last: last.as_micros() / 1_000_000,
            steps: steps.iter().copied().skip_while(|count| *count == 0).collect(),
        }
    }

    fn subject(&self) -> Option<Subject> {
        let realm = match &*self.realm {
            "ip" => Realm::Ip,
            "key" => Realm::Key,
            "consumer" => Realm::Consumer,
            "user" => Realm::User,
            "global" => Realm::Global,
            "unknown" => Realm::Unknown,
            custom => Realm::custom(custom).ok()?,
        };
        match self.is_digest {
            false => Some(Subject::new(realm, &self.id)),
            true if self.id.len() == 32 => {
                let digest = u128::from_str_radix(&self.id, 16).ok()?;
                Some(Subject::digest(realm, digest.to_be_bytes()))
            }
            true => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(subject: Subject) -> InstanceNote {
        let mut steps = vec![0; STEPS];
        steps[STEPS - 1] = 7;
        let at = Timestamp::from_secs(1_769_947_200);
        let denied_by = Some(("consumers".to_owned(), "minute".to_owned()));
        let denied = DeniedSubject { subject, denied_by, since: at, last: at, steps };
        InstanceNote {
            instance: "a".to_owned(),
            at: 1_769_947_200,
            per_second: 2.5,
            denied_per_second: 0.5,
            limited: 1,
            denied: vec![DeniedNote::of(&denied)],
        }
    }

    #[test]
    fn a_note_has_one_line_and_is_read_as_it_was_written() {
        let tenant = Realm::custom("tenant").unwrap();
        for subject in [
            Subject::consumer("a\nb\"<script>\u{2028}"),
            Subject::digest(Realm::Key, [0xab; 16]),
            Subject::new(Realm::Consumer, &"x".repeat(300)),
            Subject::new(tenant, ""),
        ] {
            let text = note(subject.clone()).to_json();
            assert!(!text.contains('\n'), "{text}");
            let read: Vec<_> = InstanceNote::parse(&text).unwrap().subjects().collect();
            assert_eq!(read, note(subject).subjects().collect::<Vec<_>>());
            assert_eq!(read[0].last_minute(), 7);
        }
    }

    #[test]
    fn damaged_and_foreign_notes_are_refused() {
        let text = note(Subject::consumer("abc")).to_json();
        for (part, other) in [
            ("\"per_second\":2.5", "\"per_second\":-1"),
            ("\"per_second\":2.5", "\"per_second\":1e300"),
            ("\"at\":1769947200", "\"at\":18446744073709551615"),
            ("\"since\":1769947200", "\"since\":18446744073709551615"),
            ("\"limited\":1", "\"limited\":4000000000"),
            ("\"realm\":\"consumer\"", "\"realm\":\"no realm\""),
            ("\"is_digest\":false", "\"is_digest\":true"),
            ("\"steps\":[7]", "\"steps\":[18446744073709551615]"),
            ("\"denied\":[", "\"denied\":[1,"),
            ("{\"instance\"", "{\"instances\""),
        ] {
            let damaged = text.replacen(part, other, 1);
            assert_ne!(damaged, text, "{part}");
            assert!(InstanceNote::parse(&damaged).is_err(), "{damaged}");
        }
        let long = text.replace("[7]", &format!("{:?}", [1; STEPS + 1]));
        assert!(InstanceNote::parse(&long).is_err() && InstanceNote::parse("no note").is_err());
    }
}
