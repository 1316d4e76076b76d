use std::ops::Deref;

use super::Outcome;

/// The outcomes of a decision, in the order of the policy's limits; six need no memory of their own.
#[derive(Clone, Debug)]
pub(crate) struct Outcomes {
    few: [Outcome; Outcomes::FEW],
    // How many of the few there are; all are in `more` if there are more.
    count: usize,
    #[expect(clippy::box_collection, reason = "one word: decisions are moved about")]
    more: Option<Box<Vec<Outcome>>>,
}

impl Outcomes {
    const FEW: usize = 6;

    pub(crate) const fn new() -> Self {
        Self { few: [Outcome::granted(0, 0); Self::FEW], count: 0, more: None }
    }

    /// Room for `count` outcomes to be written, six at most.
    #[inline]
    pub(crate) fn few_mut(&mut self, count: usize) -> &mut [Outcome; Self::FEW] {
        (self.count, self.more) = (count.min(Self::FEW), None);
        &mut self.few
    }

    pub(crate) fn push(&mut self, outcome: Outcome) {
        match (&mut self.more, self.few.get_mut(self.count)) {
            (Some(more), _) => more.push(outcome),
            (None, Some(next)) => {
                *next = outcome;
                self.count += 1;
            }
            (None, None) => {
                let mut more = self.few.to_vec();
                more.push(outcome);
                self.more = Some(Box::new(more));
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }
}

impl Deref for Outcomes {
    type Target = [Outcome];

    #[inline]
    fn deref(&self) -> &[Outcome] {
        match &self.more {
            None => &self.few[..self.count.min(Self::FEW)],
            Some(more) => more,
        }
    }
}

impl<'a> IntoIterator for &'a Outcomes {
    type Item = &'a Outcome;
    type IntoIter = std::slice::Iter<'a, Outcome>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<Outcome> for Outcomes {
    fn from_iter<I: IntoIterator<Item = Outcome>>(outcomes: I) -> Self {
        let mut all = Self::new();
        outcomes.into_iter().for_each(|outcome| all.push(outcome));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_all_of_a_policy() {
        for count in 0..=16 {
            let outcome = |used| Outcome::granted(used, 1);
            let outcomes: Outcomes = (0..count).map(outcome).collect();
            assert!(outcomes.iter().copied().eq((0..count).map(outcome)), "{count}");
        }
    }
}
