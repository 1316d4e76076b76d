//! Sets the cost of a request while its answer arrives.

use futures::stream::{Stream, StreamExt};
use rl_tower::Permit;

use crate::model::Piece;

/// The rules that count tokens. The other rules keep their cost of 1.
const TOKEN_RULES: [&str; 2] = ["tokens", "organisation"];

/// Passes the pieces of an answer on, and sets the cost of the request to the tokens so far.
///
/// The last piece contains the usage that the model reports. If the client disconnects, the stream
/// is dropped before its end, and with it the last handle of the permit. The request is then
/// settled at the cost that was set last.
pub(crate) fn metered(
    answer: impl Stream<Item = Piece>,
    permit: Permit,
    prompt_tokens: u64,
) -> impl Stream<Item = Piece> {
    let mut tokens = prompt_tokens;
    set_cost(&permit, tokens);
    answer.inspect(move |piece| {
        tokens = match piece {
            Piece::Token(_) => tokens + 1,
            Piece::End { prompt_tokens, completion_tokens } => prompt_tokens + completion_tokens,
        };
        set_cost(&permit, tokens);
    })
}

fn set_cost(permit: &Permit, tokens: u64) {
    for rule in TOKEN_RULES {
        permit.set_rule_cost(rule, tokens);
    }
}
