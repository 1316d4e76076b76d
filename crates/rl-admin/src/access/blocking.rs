use rl_records::RecordContent;

use super::{Role, Roles};

/// What a change of a record asks for besides the role to change records: whoever may not block a
/// consumer, or unblock it, cannot do so by a change either.
pub(crate) fn roles_to_change(before: &RecordContent, after: &RecordContent) -> Roles {
    let roles = Roles::NONE;
    let roles = if adds(before, after) { roles.with(Role::CanCreateRateLimits) } else { roles };
    if adds(after, before) { roles.with(Role::CanDeleteRateLimits) } else { roles }
}

/// Whether `after` blocks at a time at which `before` does not.
fn adds(before: &RecordContent, after: &RecordContent) -> bool {
    let is_within = before.from_date <= after.from_date && after.to_date <= before.to_date;
    after.blocks && !(before.blocks && is_within)
}

#[cfg(test)]
mod tests {
    use rl_core::time::Timestamp;

    use super::*;

    #[test]
    fn a_change_that_blocks_needs_the_role_to_block_and_one_that_unblocks_that_one() {
        let block = |from, to| {
            RecordContent::block("abc", Timestamp::from_secs(from), Timestamp::from_secs(to))
        };
        let none = RecordContent { blocks: false, ..block(10, 20) };
        let (create, delete) = (Role::CanCreateRateLimits, Role::CanDeleteRateLimits);
        #[rustfmt::skip]
        let table = [
            (none.clone(),  none.clone(),  vec![]),
            (block(10, 20), block(10, 20), vec![]),
            (none.clone(),  block(10, 20), vec![create]),
            (block(10, 20), none,          vec![delete]),
            (block(10, 20), block(10, 21), vec![create]),
            (block(10, 20), block(9, 20),  vec![create]),
            (block(10, 20), block(10, 19), vec![delete]),
            (block(10, 20), block(11, 20), vec![delete]),
            (block(10, 20), block(11, 21), vec![create, delete]),
        ];
        for (before, after, roles) in table {
            let found = roles_to_change(&before, &after);
            assert_eq!(found, Roles::from_iter(roles), "{before:?} {after:?}");
        }
    }
}
