use std::cell::Cell;
use std::thread::LocalKey;

/// A value in a box, or none. Each thread recycles the boxes that it drops.
///
/// Decisions are created and dropped at a high rate, so an allocation for each would take
/// noticeable time.
#[derive(Debug)]
pub(crate) struct Recycled<T: Recycle>(Option<Box<T>>);

/// A type whose boxes are recycled.
pub(crate) trait Recycle: Clone + 'static {
    /// The boxes that this thread has dropped.
    const SLOTS: &'static LocalKey<Slots<Self>>;

    /// Creates a value for a new box.
    fn unset() -> Self;

    /// Drops what a recycled box must not keep.
    fn clear(&mut self) {}
}

/// The boxes that a thread has dropped, at most two: a request that passes a layer holds two
/// decisions.
pub(crate) struct Slots<T>([Cell<Option<Box<T>>>; 2]);

impl<T> Slots<T> {
    pub(super) const fn empty() -> Self {
        Self([const { Cell::new(None) }; 2])
    }

    fn take(&self) -> Option<Box<T>> {
        let [first, second] = &self.0;
        first.take().or_else(|| second.take())
    }

    fn put(&self, value: Box<T>) {
        let [first, second] = &self.0;
        if let Some(before) = first.replace(Some(value)) {
            second.set(Some(before));
        }
    }
}

impl<T: Recycle> Recycled<T> {
    pub(super) const NONE: Self = Self(None);

    /// Takes a recycled box, or creates one. The caller has to overwrite the value, which may be an
    /// earlier one.
    pub(super) fn new() -> Self {
        // While a thread ends, its slots no longer exist.
        let recycled = T::SLOTS.try_with(Slots::take).ok().flatten();
        Self(Some(recycled.unwrap_or_else(|| Box::new(T::unset()))))
    }

    pub(super) fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    pub(super) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// Returns the value. Creates it first if there is none.
    pub(super) fn get_or_new(&mut self) -> &mut T {
        if self.0.is_none() {
            *self = Self::new();
        }
        self.0.as_deref_mut().expect("it has just been created")
    }
}

impl<T: Recycle> Clone for Recycled<T> {
    fn clone(&self) -> Self {
        let Some(value) = self.get() else { return Self::NONE };
        let mut clone = Self::new();
        clone.get_or_new().clone_from(value);
        clone
    }
}

impl<T: Recycle> Drop for Recycled<T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            recycle(value);
        }
    }
}

/// Clears a box and puts it into a slot. Not inlined, because otherwise every drop of a decision
/// would save registers, even if it has no box.
#[inline(never)]
fn recycle<T: Recycle>(mut value: Box<T>) {
    value.clear();
    let _ = T::SLOTS.try_with(|slots| slots.put(value));
}
