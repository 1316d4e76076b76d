/// The name of a limit's units in messages to clients.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Unit {
    // Text of `len` bytes, then zeros: `Limit` is `Copy`, and is made in `const` functions.
    text: [u8; Unit::LONGEST],
    len: u8,
}

impl Unit {
    pub(super) const LONGEST: usize = 16;

    pub(super) const REQUESTS: Self = Self { text: *b"requests\0\0\0\0\0\0\0\0", len: 8 };

    /// Returns the unit of this name, if it is 1 to 16 characters of `a-z`, `0-9` and `-`.
    pub(super) fn new(name: &str) -> Option<Self> {
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let is_name = (1..=Self::LONGEST).contains(&name.len()) && name.bytes().all(fits);
        is_name.then(|| {
            let mut text = [0; Self::LONGEST];
            text[..name.len()].copy_from_slice(name.as_bytes());
            Self { text, len: name.len() as u8 }
        })
    }

    pub(super) fn as_str(&self) -> &str {
        // `new` admits only ASCII.
        std::str::from_utf8(&self.text[..usize::from(self.len)]).unwrap_or("units")
    }
}
