//! The scripts that are composed for the shapes of policies.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError, RwLock};

use super::{Purpose, Script, composer};
use crate::store::redis::encoding::kind::ScriptShape;

/// Scripts by their purpose, and by the shapes for which they are composed.
type ComposedScripts = HashMap<(Purpose, Vec<ScriptShape>), &'static Script>;
static COMPOSED: LazyLock<Mutex<ComposedScripts>> = LazyLock::new(Mutex::default);

/// Returns the script with a fast path for these shapes: that of a policy, or one for each part.
/// Returns `None` if it would be too long, or if Lua has no room for its variables.
pub(crate) fn of_shapes(purpose: Purpose, shapes: &[ScriptShape]) -> Option<&'static Script> {
    let has_fast_path = match (purpose, shapes) {
        (_, []) => false,
        (Purpose::Parts, _) => composer::fits_parts_fast_path(shapes),
        (_, [shape, ..]) => composer::can_compose(shape),
    };
    if !has_fast_path {
        return None;
    }
    let mut scripts = COMPOSED.lock().unwrap_or_else(PoisonError::into_inner);
    // Leaked, because scripts are used as long as the process runs. Each store bounds their number.
    let new = || -> &'static Script { Box::leak(Box::new(Script::composed(purpose, shapes))) };
    Some(scripts.entry((purpose, shapes.to_vec())).or_insert_with(new))
}

/// The scripts of the shapes that a store has used for one purpose.
///
/// A server keeps every script, so their number is bounded. Requests of further shapes are decided
/// by the script that accepts any policy.
#[derive(Debug)]
pub(crate) struct ShapeScripts {
    purpose: Purpose,
    most: usize,
    /// The script of each list of shapes, or `None` if there is no fast path for them.
    scripts: RwLock<HashMap<Vec<ScriptShape>, Option<&'static Script>>>,
}

impl ShapeScripts {
    pub(crate) fn new(purpose: Purpose, most: usize) -> Self {
        Self { purpose, most, scripts: RwLock::default() }
    }

    /// Returns the script with a fast path for these shapes. Returns `None` if there is none, or if
    /// the maximum number of scripts is reached.
    pub(crate) fn get(&self, shapes: &[ScriptShape]) -> Option<&'static Script> {
        let scripts = self.scripts.read().unwrap_or_else(PoisonError::into_inner);
        match scripts.get(shapes) {
            Some(script) => *script,
            None if scripts.len() >= self.most => None,
            None => {
                drop(scripts);
                self.add(shapes)
            }
        }
    }

    #[cold]
    fn add(&self, shapes: &[ScriptShape]) -> Option<&'static Script> {
        let mut scripts = self.scripts.write().unwrap_or_else(PoisonError::into_inner);
        // Check again: before this lock was taken, another thread may have added this script, or
        // the last one that is allowed.
        let has_room = scripts.len() < self.most || scripts.contains_key(shapes);
        let new = || of_shapes(self.purpose, shapes);
        if has_room { *scripts.entry(shapes.to_vec()).or_insert_with(new) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::encoding::kind::{Kind, LimitKind};

    #[test]
    fn a_store_runs_a_bounded_number_of_shapes() {
        let shape = |limits| -> [ScriptShape; 1] {
            let gcra = LimitKind { kind: Kind::Gcra, counts_requests: false };
            [smallvec::smallvec![gcra; limits]]
        };
        let scripts = ShapeScripts::new(Purpose::Decide, 2);
        let names = [1, 2, 3, 1].map(|limits| scripts.get(&shape(limits)).map(Script::name));
        let [one, two] = [Some("decide 1*gcra"), Some("decide 2*gcra")];
        assert_eq!(names, [one, two, None, one]);
        assert!(ShapeScripts::new(Purpose::Decide, 0).get(&shape(1)).is_none());
        let text = of_shapes(Purpose::Decide, &shape(2)).unwrap().text();
        assert!(text.contains("micros_2") && !text.contains("--"), "{text}");
        let windows = LimitKind { kind: Kind::SlidingWindow, counts_requests: false };
        let has_script =
            |limits| of_shapes(Purpose::Decide, &[smallvec::smallvec![windows; limits]]);
        assert!(has_script(14).is_some() && has_script(15).is_none());
    }
}
