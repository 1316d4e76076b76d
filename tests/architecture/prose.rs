//! Finds wording that `CONTRIBUTING.md` rules out, because readers had to read it twice.

use super::source::read;

/// A ruled-out wording, and what to write instead.
#[derive(Clone, Copy, Debug)]
struct Wording {
    /// Words or phrases, which are found only as whole words. Those that begin with `^` are found
    /// only at the beginning of a sentence.
    words: &'static [&'static str],
    instead: &'static str,
}

// Some of the words are split in two, so that this file does not contain them.
const WORDINGS: [Wording; 6] = [
    Wording {
        words: &[concat!("so", " many"), concat!("so", " much")],
        instead: "a number, or the name of the parameter",
    },
    Wording {
        words: &[
            concat!("no", "body"),
            concat!("some", "body"),
            concat!("any", "body"),
            concat!("who", "ever"),
        ],
        instead: "the task, thread, caller, client or connection that is meant",
    },
    Wording {
        words: &[concat!("to", "ld"), concat!("te", "lls")],
        instead: "return, report, respond, notify, log, emit",
    },
    Wording {
        words: &[concat!("unless", " said"), concat!("as", " ever"), concat!("as it", " is set")],
        instead: "the default, by its value",
    },
    Wording {
        words: &[
            concat!("at", " leisure"),
            concat!("al", "oud"),
            concat!("stands", " in for"),
            concat!("stand", " in for"),
            concat!("turned", " away"),
            concat!("turns", " away"),
            concat!("let", " go"),
        ],
        instead: "the field's word: reject, release, fallback, failure policy",
    },
    Wording {
        words: &["^Who", "^What", concat!("^Who", "ever"), concat!("^What", "ever"), "^That which"],
        instead: "the noun that is meant, as the subject of the sentence",
    },
];

/// Returns the ruled-out wording in a file, with the surrounding text.
pub(super) fn ruled_out(file: &str) -> Vec<String> {
    let text = read(file);
    let is_code = !file.ends_with(".md");
    let passages = if is_code { comments_and_messages(&text) } else { paragraphs(&text) };
    let mut found = Vec::new();
    for passage in passages {
        let prose = Prose::of(&passage);
        // A passage that is only the word below is the name of a user of the operating system, and
        // is allowed.
        if passage.trim() == concat!("no", "body") {
            continue;
        }
        for Wording { words, instead } in WORDINGS {
            for word in words {
                if let Some(around) = prose.find(word) {
                    found.push(format!("{file}: \"{around}\": write {instead}"));
                }
            }
        }
    }
    found
}

/// Returns the comments of a source file, with consecutive lines joined, and its string literals.
fn comments_and_messages(text: &str) -> Vec<String> {
    let mut passages = vec![String::new()];
    for line in text.lines().map(str::trim) {
        let comment = line.strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']));
        let comment = comment.or_else(|| line.strip_prefix("--"));
        match comment {
            Some(comment) => {
                let passage = passages.last_mut().unwrap();
                passage.push_str(comment.trim());
                passage.push(' ');
            }
            None => {
                passages.push(String::new());
                passages.extend(line.split('"').skip(1).step_by(2).map(|text| format!(" {text}")));
                passages.push(String::new());
            }
        }
    }
    passages
}

/// Returns the paragraphs of a document without its code blocks.
fn paragraphs(text: &str) -> Vec<String> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|text| text.split("\n\n")).map(|text| text.replace('\n', " ")).collect()
}

/// A passage without its code.
struct Prose {
    text: String,
    lower: String,
}

impl Prose {
    fn of(passage: &str) -> Self {
        let text = passage.split('`').step_by(2).collect::<Vec<_>>().join("`…`");
        // A name in braces, as in a format string, counts as code.
        let text: String = text
            .split('{')
            .map(|part| part.split_once('}').map_or(part, |(_, rest)| rest))
            .collect();
        Self { lower: text.to_lowercase(), text }
    }

    /// Returns the text around `word`, if it occurs in the passage.
    fn find(&self, word: &str) -> Option<String> {
        let (begins_sentence, word) = match word.strip_prefix('^') {
            Some(word) => (true, word),
            None => (false, word),
        };
        let (searched, word) = if begins_sentence {
            (&self.text, word.to_owned())
        } else {
            (&self.lower, word.to_lowercase())
        };
        let is_letter = |c: char| c.is_alphanumeric() || c == '_';
        for (at, _) in searched.match_indices(&word) {
            let (before, after) = (&searched[..at], &searched[at + word.len()..]);
            if before.ends_with(is_letter) || after.starts_with(is_letter) {
                continue;
            }
            if begins_sentence {
                let before = before.trim_end();
                let begins = before.is_empty() || before.ends_with(['.', ':', ';', '!', '*', '|']);
                let sentence = after.split(['.', '!', '|']).next().unwrap_or_default();
                // A question or the heading of a table may begin with the word.
                if !begins || sentence.contains('?') || sentence.trim().is_empty() {
                    continue;
                }
            }
            let from = before.char_indices().rev().nth(30).map_or(0, |(at, _)| at);
            let to = after.char_indices().nth(40).map_or(after.len(), |(at, _)| at);
            return Some(format!("{}{word}{}", &searched[from..at], &after[..to]));
        }
        None
    }
}

#[test]
fn wordings_are_found_where_they_stand_and_not_within_words_or_code() {
    let find = |text: &str, word| Prose::of(text).find(word);
    assert!(find(concat!("It refills. W", "ho has none waits."), "^Who").is_some());
    assert!(find("Who is counted?", "^Who").is_none());
    assert!(find("The client who has none waits.", "^Who").is_none());
    assert!(find(concat!("It is to", "ld later."), concat!("to", "ld")).is_some());
    assert!(find("Uses `told` and untold riches.", concat!("to", "ld")).is_none());
}
