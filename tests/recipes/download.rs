use std::error::Error;
use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::stream;
use rl_tower::store::Store;
use rl_tower::{RateLimiter, Subject};
use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest wait of a chunk, and the most downloads of one client that wait.
const AT_MOST: Duration = Duration::from_secs(30);
const QUEUE: usize = 100;

/// A megabyte per second for all downloads of a client together. The burst is two chunks: with one,
/// each timer that fires late would slow the download.
const LIMIT: &str = "1000000/second:gcra:burst=131072:unit=bytes";
const CHUNK: usize = 65_536;

fn downloads(store: impl Store) -> Result<RateLimiter, Box<dyn Error>> {
    Ok(RateLimiter::builder().namespace("downloads").limit(LIMIT.parse()?).store(store).build()?)
}

/// Returns the body of a response that sends `file`. Each chunk waits until its bytes are granted.
fn paced<F>(file: F, limiter: RateLimiter, client: Subject) -> Body
where
    F: AsyncRead + Send + Unpin + 'static,
{
    Body::from_stream(stream::try_unfold(file, move |mut file| {
        let (limiter, client) = (limiter.clone(), client.clone());
        async move {
            let mut chunk = vec![0; CHUNK];
            let length = file.read(&mut chunk).await?;
            if length == 0 {
                return Ok(None);
            }
            chunk.truncate(length);
            let decision =
                limiter.request(&client).cost(length as u64).wait(AT_MOST, QUEUE).check().await;
            if !decision.is_allowed() {
                return Err(io::Error::other("too many downloads of one client"));
            }
            Ok(Some((Bytes::from(chunk), file)))
        }
    }))
}

#[cfg(test)]
mod tests;
