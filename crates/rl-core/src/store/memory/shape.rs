use std::num::NonZeroU8;

use crate::algorithm::windows::PLACES;
use crate::model::{Algorithm, Limit, Policy, Refill, StateId, WindowPlan};

/// Which states there are, and in which order: what subjects of one policy have in common.
#[derive(Debug)]
pub(super) struct Shape {
    layouts: Box<[Layout]>,
    /// What tells the states from others: none has a precision.
    states: [u64; PLACES],
}

/// Where the state of one limit is kept.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) id: StateId,
    /// A limit that counts in it; when a state expires does not depend on which.
    pub(super) limit: Limit,
    pub(super) place: usize,
    pub(super) third: Third,
}

/// What the third cell of a state is. It takes a place of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Third {
    None,
    Number,
    Time,
}

impl Shape {
    /// The shape of the policy, if there are places for its states.
    fn of(policy: &Policy) -> Option<Self> {
        let mut next = 0;
        let layouts = policy.limits().iter().map(|named| {
            let limit = named.limit();
            let third = match limit.algorithm() {
                Algorithm::FixedWindow { .. } | Algorithm::Gcra { .. } => Third::None,
                Algorithm::TokenBucket { refill: Refill::Greedy, .. } => Third::None,
                Algorithm::TokenBucket { refill: Refill::Interval, .. } => Third::Time,
                Algorithm::SlidingWindowCounter => Third::Number,
                Algorithm::SlidingWindow { .. } => return None,
                Algorithm::SlidingLog | Algorithm::Concurrency => return None,
            };
            let place = next;
            next += 1 + usize::from(third != Third::None);
            let id = named.state();
            (next <= PLACES).then_some(Layout { id, limit, place, third })
        });
        let layouts = layouts.collect::<Option<Box<[Layout]>>>()?;
        let mut states = [0; PLACES];
        for (state, layout) in states.iter_mut().zip(&layouts) {
            *state = layout.id.bits();
        }
        Some(Self { layouts, states })
    }

    /// Whether limits that are decided in one pass count in these states, in this order.
    #[inline]
    pub(super) fn is_of_windows(&self, plan: &WindowPlan) -> bool {
        let both = self.states.iter().zip(plan.states);
        both.fold(0, |differences, (state, other)| differences | (state ^ other)) == 0
    }

    pub(super) fn layouts(&self) -> &[Layout] {
        &self.layouts
    }

    /// Whether the policy's limits count in these states, in this order.
    #[inline]
    pub(super) fn is_of(&self, policy: &Policy) -> bool {
        let limits = policy.limits();
        limits.len() == self.layouts.len()
            && limits.iter().zip(&self.layouts).all(|(named, layout)| named.state() == layout.id)
    }
}

/// The shapes that subjects of one shard have.
#[derive(Debug, Default)]
pub(super) struct Shapes(Vec<Shape>);

impl Shapes {
    #[inline]
    pub(super) fn get(&self, place: usize) -> &Shape {
        &self.0[place]
    }

    /// The number of the policy's shape: none, if there are no places for its states, or if there are
    /// 255 others. What is kept for one policy is kept for good, so they are not for the inventive.
    pub(super) fn number(&mut self, policy: &Policy) -> Option<NonZeroU8> {
        let known = self.known(policy);
        if known.is_some() || self.0.len() == usize::from(u8::MAX) {
            return known;
        }
        self.0.push(Shape::of(policy)?);
        self.known(policy)
    }

    /// The number of the policy's shape, if there is a subject that has had it.
    pub(super) fn known(&self, policy: &Policy) -> Option<NonZeroU8> {
        let place = self.0.iter().position(|shape| shape.is_of(policy))?;
        u8::try_from(place + 1).ok().and_then(NonZeroU8::new)
    }
}
