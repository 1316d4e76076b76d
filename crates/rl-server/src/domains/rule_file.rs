//! Writes the rules of another service as a rule file.

use std::fmt::{self, Write};

use super::imported::Imported;
use super::rule::{Charge, Disclosed, DomainRule};

/// Returns the text of a rule file, in YAML, with the rules of another service. Comments list the
/// differences.
#[must_use]
pub fn to_rule_file(imported: &Imported) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_file(imported, &mut text);
    text
}

fn write_file(Imported { domains, differences }: &Imported, text: &mut String) -> fmt::Result {
    if !differences.is_empty() {
        writeln!(text, "# Differences:")?;
        for difference in differences {
            writeln!(text, "# * {}", difference.replace(char::is_control, " "))?;
        }
        text.push('\n');
    }
    text.push_str("domains:\n");
    for (domain, rules) in domains {
        // An empty map would be read as no value.
        let empty = if rules.is_empty() { " {}" } else { "" };
        writeln!(text, "  {}:{empty}", Scalar(domain))?;
        for (name, rule) in rules {
            writeln!(text, "    {}:", Scalar(name))?;
            write_rule(rule, text)?;
        }
    }
    Ok(())
}

fn write_rule(rule: &DomainRule, text: &mut String) -> fmt::Result {
    let DomainRule { descriptor, when, per, limits, shadow, disclosed, charge, replaces } = rule;
    let lists = [
        ("descriptor", descriptor),
        ("when", when),
        ("per", per),
        ("limits", limits),
        ("replaces", replaces),
    ];
    for (field, values) in lists {
        match values.as_slice() {
            [] => {}
            [value] => writeln!(text, "      {field}: {}", Scalar(value))?,
            values => {
                let values: Vec<String> =
                    values.iter().map(|value| Scalar(value).to_string()).collect();
                writeln!(text, "      {field}: [{}]", values.join(", "))?;
            }
        }
    }
    if *shadow {
        writeln!(text, "      shadow: true")?;
    }
    match disclosed {
        Disclosed::Limits(true) => {}
        Disclosed::Limits(false) => writeln!(text, "      disclosed: false")?,
        Disclosed::Name(_) => writeln!(text, "      disclosed: name")?,
    }
    match charge {
        Charge::Before => {}
        Charge::After => writeln!(text, "      charge: after")?,
    }
    Ok(())
}

/// A text in YAML, without quotes if a parser reads it as a text also without them.
struct Scalar<'a>(&'a str);

impl fmt::Display for Scalar<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = self;
        let is_plain = |char: char| char.is_ascii_alphanumeric() || "_-./=".contains(char);
        let begins_plainly = text.starts_with(|first: char| first.is_ascii_alphabetic());
        // A limit has a slash, and no value of another type has one.
        let is_limit = text.starts_with(|first: char| first.is_ascii_digit())
            && text.contains('/')
            && text.chars().all(|char| is_plain(char) || char == ':')
            && !text.ends_with(':');
        let is_word = text.contains(['_', '.', '/', '=', '-']) || text.len() > 5;
        if is_limit || begins_plainly && is_word && text.chars().all(is_plain) {
            return f.write_str(text);
        }
        f.write_char('"')?;
        for char in text.chars() {
            match char {
                '"' | '\\' => write!(f, "\\{char}")?,
                '\u{2028}' | '\u{2029}' | '\u{feff}' => write!(f, "\\u{:04x}", u32::from(char))?,
                char if char.is_control() => write!(f, "\\u{:04x}", u32::from(char))?,
                char => f.write_char(char)?,
            }
        }
        f.write_char('"')
    }
}
