//! A fake language model, which counts to ten again and again.

use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};

/// The tokens after which the model ends an answer by itself.
const LONGEST: u64 = 40;
/// The time that the model takes for a token.
const PACE: Duration = Duration::from_millis(50);

const WORDS: [&str; 10] =
    ["one ", "two ", "three ", "four ", "five ", "six ", "seven ", "eight ", "nine ", "ten "];

/// A piece of an answer, as the model sends it.
#[derive(Clone, Copy)]
pub(crate) enum Piece {
    Token(&'static str),
    /// The end of the answer, with the tokens of the whole request.
    End {
        prompt_tokens: u64,
        completion_tokens: u64,
    },
}

/// Streams an answer of at most `max_tokens` tokens, one token at a time.
#[expect(clippy::disallowed_methods, reason = "the model computes in real time")]
pub(crate) fn answer(
    prompt_tokens: u64,
    max_tokens: u64,
) -> impl Stream<Item = Piece> + Send + 'static {
    let completion_tokens = max_tokens.min(LONGEST);
    let tokens = (0..completion_tokens).zip(WORDS.iter().cycle());
    let tokens = tokens.map(|(_, word)| Piece::Token(word));
    let end = Piece::End { prompt_tokens, completion_tokens };
    stream::iter(tokens.chain([end])).then(async |piece| {
        tokio::time::sleep(PACE).await;
        piece
    })
}
