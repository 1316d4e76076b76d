//! Sums of keyed products modulo a prime: the multilinear hash of [fingerprints] and namespaces.
//!
//! [fingerprints]: super::fingerprint::Fingerprint

use std::hash::{BuildHasher, RandomState};

/// The prime by which halves are reduced. A Mersenne prime makes the reduction fast.
const PRIME: u64 = (1 << 61) - 1;

/// The number of text bytes that one number contains.
pub(super) const NUMBER_BYTES: usize = 7;

/// The key of one number, with a value for each half.
pub(super) type Key = [u64; 2];

/// Draws random keys.
pub(super) struct RandomKeys {
    // `RandomState` is the standard library's source of random keys, and its hash is a
    // pseudorandom function.
    random: RandomState,
    counter: u64,
}

impl RandomKeys {
    pub(super) fn new() -> Self {
        Self { random: RandomState::new(), counter: 0 }
    }

    /// Returns a new key.
    pub(super) fn next(&mut self) -> Key {
        [self.number(), self.number()]
    }

    /// Returns new keys.
    pub(super) fn many<const COUNT: usize>(&mut self) -> [Key; COUNT] {
        std::array::from_fn(|_| self.next())
    }

    fn number(&mut self) -> u64 {
        loop {
            self.counter += 1;
            let number = self.random.hash_one(self.counter) & PRIME;
            if number < PRIME {
                return number;
            }
        }
    }
}

/// The sum of each half of a hash. A sum stays below 2^124, because fewer than 64 products below
/// 2^118 are added.
#[derive(Clone, Copy)]
pub(super) struct HashSums([u128; 2]);

impl HashSums {
    /// Creates sums that begin with these numbers.
    #[inline]
    pub(super) fn new(begin: [u64; 2]) -> Self {
        Self(begin.map(u128::from))
    }

    /// Returns a number for each half that is congruent to the sum modulo the prime.
    ///
    /// The numbers may exceed the prime, but two numbers are equal only if their sums are
    /// congruent.
    #[inline]
    pub(super) fn reduced(self) -> [u64; 2] {
        self.0.map(fold)
    }

    /// Adds a number below 2^57, multiplied by its key.
    pub(super) fn add(&mut self, number: u64, key: Key) {
        self.0[0] += u128::from(number) * u128::from(key[0]);
        self.0[1] += u128::from(number) * u128::from(key[1]);
    }

    /// Adds a text, with one key for every seven bytes. Two different texts of the same length
    /// differ in at least one of the added numbers.
    #[inline]
    pub(super) fn add_text(&mut self, text: &[u8], keys: &[Key]) {
        const SEVEN_BYTES: u64 = (1 << (8 * NUMBER_BYTES)) - 1;

        debug_assert!(text.len().div_ceil(NUMBER_BYTES) < keys.len());
        let mut keys = keys.iter();
        let mut rest = text;
        // One load of eight bytes is cheaper than seven loads of one byte. The eighth byte is
        // masked out, and is loaded again with the next number.
        while let Some(eight) = rest.first_chunk::<8>() {
            let Some(key) = keys.next() else { return };
            self.add(u64::from_le_bytes(*eight) & SEVEN_BYTES, *key);
            rest = &rest[NUMBER_BYTES..];
        }
        if rest.is_empty() {
            return;
        }
        // At most seven bytes are left. In a text of eight bytes or more, the last seven bytes are
        // added; some of them may be added twice, which does no harm.
        let number = match text.last_chunk::<8>() {
            Some(eight) => u64::from_le_bytes(*eight) >> 8,
            None => short_text(rest),
        };
        let Some(key) = keys.next() else { return };
        self.add(number, *key);
    }
}

/// Returns a number below 2^56 that contains every byte of a text of one to seven bytes.
///
/// A byte may occur twice in the number, so two cases suffice: four bytes or more, and fewer.
fn short_text(text: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        return u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 24;
    }
    // For one to three bytes, the first, the middle and the last include every byte.
    let byte = |index: usize| u64::from(text[index]);
    byte(0) | byte(text.len() / 2) << 8 | byte(text.len() - 1) << 16
}

/// Returns a number that is congruent to `sum` modulo the prime. `sum` must be below 2^124.
///
/// The result may exceed the prime, but two results are equal only if their sums are congruent.
const fn fold(sum: u128) -> u64 {
    // Modulo the prime, 2^61 is 1, so the upper bits are added to the lower ones. The upper bits
    // are below 2^63.
    (sum as u64 & PRIME) + (sum >> 61) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folding_keeps_the_remainder_modulo_the_prime() {
        let prime = u128::from(PRIME);
        for sum in [0, 1, prime - 1, prime, prime + 1, 2 * prime, prime * prime, u128::MAX >> 4] {
            assert_eq!(u128::from(fold(sum)) % prime, sum % prime, "{sum}");
        }
    }
}
