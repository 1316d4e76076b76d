//! The names of all fields.

/// The names of all fields that are ever written, in lower case. Where one stands is the
/// [place](super::HeaderLine::place) of its lines: who has a type of their own for names makes each once.
pub const NAMES: [&str; 15] = [
    "x-rate-limit-limit",
    "x-rate-limit-remaining",
    "x-rate-limit-reset",
    "x-rate-limit-warning",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-used",
    "x-ratelimit-reset",
    "x-ratelimit-resource",
    "ratelimit-policy",
    "ratelimit",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "retry-after",
];

/// Where `name` stands: for constants, as a name that is missing does not compile there.
pub(super) const fn place(name: &str) -> usize {
    let mut place = 0;
    while !is_same(NAMES[place].as_bytes(), name.as_bytes()) {
        place += 1;
    }
    place
}

const fn is_same(mut a: &[u8], mut b: &[u8]) -> bool {
    while let ([first, rest @ ..], [other, others @ ..]) = (a, b) {
        if *first != *other {
            return false;
        }
        (a, b) = (rest, others);
    }
    a.is_empty() && b.is_empty()
}
