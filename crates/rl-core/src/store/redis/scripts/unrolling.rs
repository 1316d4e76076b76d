//! Expands the template of `fixed_windows/unrolled.lua`: the common case, written out for each
//! number of limits.
//!
//! The unrolled form has no loop and no table over the limits, which saves a third of the time of a
//! check. `fixed_windows/loop.lua` is the same decision with a loop. It handles every policy of
//! fixed windows, and all denials.
//!
//! ```text
//! template:  local <<left_i, used_i>> = struct.unpack('<<I7I7>>', stored)
//!            left_i = left_i - elapsed
//!
//! 2 limits:  local left_1, used_1, left_2, used_2 = struct.unpack('I7I7I7I7', stored)
//!            left_1 = left_1 - elapsed
//!            left_2 = left_2 - elapsed
//! ```

/// The largest number of limits that are written out. Policies with more limits take the loop.
const MAX_UNROLLED: usize = 12;

/// Expands the template once for each number of limits.
///
/// * `COUNT` becomes the number of limits.
/// * Text between `<<` and `>>` is repeated for each limit within its line: names with commas
///   between them, formats without.
/// * Consecutive lines with a name that ends in `_i` are repeated together for each limit.
pub(super) fn expand(template: &str) -> String {
    let code: Vec<&str> = template.lines().filter(|line| !line.starts_with("--")).collect();
    let mut script = String::from(
        "local clock, shape, plan, format = now, ARGV[1], ARGV[2], ARGV[3]\nlocal replies, allowed_subjects = {}, 0\n",
    );
    script.push_str("local kind = struct.unpack('>I2', plan)\n");
    for count in 1..=MAX_UNROLLED {
        let lines: Vec<String> = code
            .iter()
            .map(|line| expand_lists(&line.replace("COUNT", &count.to_string()), count))
            .collect();
        for block in lines.chunk_by(|one, next| is_per_limit(one) == is_per_limit(next)) {
            let repetitions = if is_per_limit(&block[0]) { count } else { 1 };
            for limit in 1..=repetitions {
                for line in block {
                    script.push_str(&with_number(line.trim_start(), limit));
                    script.push('\n');
                }
            }
        }
    }
    script
}

/// Returns whether a line is repeated for each limit.
fn is_per_limit(line: &str) -> bool {
    line.contains("_i")
}

/// Repeats the text between each `<<` and `>>` of a line for each limit.
fn expand_lists(line: &str, count: usize) -> String {
    let mut parts = line.split("<<");
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (item, rest) = part.split_once(">>").unwrap_or((part, ""));
        let separator = if is_per_limit(item) { ", " } else { "" };
        let items: Vec<String> = (1..=count).map(|limit| with_number(item, limit)).collect();
        expanded.push_str(&items.join(separator));
        expanded.push_str(rest);
    }
    expanded
}

/// Replaces the suffix `_i` of names by the number of a limit.
fn with_number(text: &str, limit: usize) -> String {
    text.replace("_i", &format!("_{limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_expanded_once_for_each_number_of_limits() {
        let template = "-- a comment\nif kind == COUNT then\n  f('<<I7>>', <<a_i, b_i>>)\n  a_i = 1\n  b_i = 2\nend\n";
        let script = expand(template);
        let two = "if kind == 2 then\nf('I7I7', a_1, b_1, a_2, b_2)\na_1 = 1\nb_1 = 2\na_2 = 1\nb_2 = 2\nend\n";
        assert!(script.contains(two), "{script}");
        assert!(!script.contains("comment"), "{script}");
        assert_eq!(script.matches("if kind ==").count(), MAX_UNROLLED);
    }
}
