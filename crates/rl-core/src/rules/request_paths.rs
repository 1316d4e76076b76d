//! The paths of a request, also within nested routers.

use smallvec::{SmallVec, smallvec};

use super::path_forms::{PathForms, Readings, decode_segments};
use super::path_templates::PathTemplates;
use crate::key::{NestedPrefix, RequestInfo};

/// The paths of a request.
pub(super) struct RequestPaths<'a> {
    /// The path that the client has sent, and the paths that the service may route on if a
    /// middleware has rewritten it.
    whole: SmallVec<[PathForms<'a>; 1]>,
    /// The path within nested routers, and the paths within some of them.
    nested: SmallVec<[PathForms<'a>; 1]>,
}

impl<'a> RequestPaths<'a> {
    /// Reads the paths of `request`.
    pub(super) fn new(request: &'a dyn RequestInfo) -> Self {
        let (sent, routed) = (request.path(), request.routed_path());
        let mut readings = Readings::default();
        let whole = smallvec![PathForms::within(sent, &mut readings)];
        let mut paths = Self { whole, nested: SmallVec::new() };
        let runs = match request.nested_prefix() {
            NestedPrefix::None if routed == sent => return paths,
            NestedPrefix::None => {
                paths.whole.push(PathForms::within(routed, &mut readings));
                return paths;
            }
            NestedPrefix::Removed(prefix) => PrefixRuns::new(sent, routed, &prefix, true),
            NestedPrefix::PartlyRemoved(prefix) => PrefixRuns::new(sent, routed, &prefix, false),
            NestedPrefix::Unknown => None,
        };
        let Some(PrefixRuns { runs, is_rewritten, may_lack_slashes }) = runs else {
            paths.whole.push(PathForms::unknown());
            return paths;
        };
        let nested = match may_lack_slashes {
            true => PathForms::within(format!("//{routed}"), &mut readings),
            false => PathForms::within(routed, &mut readings),
        };
        let after = |run: String| nested.after(&run, &mut readings);
        let completed = if is_rewritten { &mut paths.whole } else { &mut paths.nested };
        completed.extend(runs.into_iter().map(after));
        completed.push(nested);
        paths
    }

    /// Returns the forms of all paths. Returns `None` if a path may have any form.
    pub(super) fn forms(&self) -> Option<impl Iterator<Item = &str>> {
        let all = || self.whole.iter().chain(&self.nested);
        all().all(PathForms::is_complete).then(|| all().flat_map(PathForms::iter))
    }

    /// Returns whether a template matches a form of a path.
    pub(super) fn may_match(&self, templates: &PathTemplates) -> bool {
        self.whole.iter().chain(&self.nested).any(|path| templates.may_match(path))
    }

    /// Returns whether templates match each form of the whole paths.
    pub(super) fn surely_matches(&self, templates: &PathTemplates) -> bool {
        self.whole.iter().all(|path| templates.surely_matches(path))
    }
}

/// The maximum number of runs of a prefix. With several equal segments, each of them may be the
/// last one of a run, and a client chooses the values of parameters.
const MAX_RUNS: usize = 32;

/// The texts that may come before the path within nested routers: the *runs* of segments of their
/// prefix.
///
/// The prefix does not show where the path begins, because a handler of a nested router may pass a
/// request on to another router, which adds its own prefix.
struct PrefixRuns {
    /// The runs with at least one segment. Left out are those that complete the path that was sent.
    runs: Vec<String>,
    /// Whether the path that was sent is not the prefix and the path within the routers, because a
    /// middleware has rewritten it.
    is_rewritten: bool,
    /// Whether axum may have removed slashes after the prefix. It removes the first of several, and
    /// two if the pattern of the prefix ends with one. A parameter there may be empty.
    may_lack_slashes: bool,
}

impl PrefixRuns {
    /// Finds the runs of the segments of `prefix` before `routed`. The routers have removed all of
    /// these segments if `is_removed`. Otherwise, `routed` may begin with those that are left.
    ///
    /// Returns `None` if the runs are too many, or not known.
    fn new(sent: &str, routed: &str, prefix: &str, is_removed: bool) -> Option<Self> {
        let segments: Vec<&str> = prefix.split('/').skip(1).collect();
        // axum joins an empty value of a parameter with the slash that follows.
        if segments.iter().any(|segment| segment.is_empty()) {
            return None;
        }
        // The prefix may encode the values of its parameters differently from the path that was
        // sent.
        let read = |path: &str| decode_segments(path).replace("%2f", "%2F");
        let sent = read(sent);
        let is_left = |left: &[&str]| {
            let mut routed = routed.split('/').skip(1);
            left.iter().all(|one| routed.next().is_some_and(|found| read(found) == read(one)))
        };
        let count = segments.len();
        let may_be_left = if is_removed { 0..0 } else { 0..count };
        let mut ends: Vec<usize> = may_be_left.filter(|end| is_left(&segments[*end..])).collect();
        let run = |begin: usize, end: usize| -> String {
            segments[begin..end].iter().flat_map(|segment| ["/", segment]).collect()
        };
        let is_sent = |end: usize, slashes: &str| {
            let whole = read(&run(0, end)) + slashes;
            sent == format!("{whole}{}", read(routed))
                // A nested router sees `/` if the path is its prefix without a slash.
                || routed == "/" && sent == whole
        };
        // A middleware or a handler may have removed segments that the routers left. That counts as
        // ordinary only if `routed` begins with none of them.
        let ordinary = if ends.is_empty() { &[count][..] } else { &ends };
        let is_sent_by_all = |slashes| ordinary.iter().all(|end| is_sent(*end, slashes));
        let may_lack_slashes = !is_sent_by_all("");
        let is_rewritten = may_lack_slashes && !is_sent_by_all("/") && !is_sent_by_all("//");
        ends.push(count);
        if ends.iter().sum::<usize>() > MAX_RUNS {
            return None;
        }
        let first = usize::from(!is_rewritten);
        let mut runs: Vec<String> =
            ends.iter().flat_map(|end| (first..*end).map(|begin| run(begin, *end))).collect();
        runs.sort_unstable();
        runs.dedup();
        Some(Self { runs, is_rewritten, may_lack_slashes })
    }
}
