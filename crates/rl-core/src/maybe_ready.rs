use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// An answer that is there at once, or comes later.
///
/// The type has a name, so that a middleware can hold it in its own future, and it allocates only
/// when there is something to wait for.
///
/// # Panics
///
/// Like most futures it panics when polled again after it was ready.
#[must_use = "futures do nothing unless awaited"]
pub enum MaybeReady<T> {
    /// The answer, until it is taken.
    Ready(Option<T>),
    /// The answer comes later.
    Boxed(Pin<Box<dyn Future<Output = T> + Send>>),
}

impl<T> MaybeReady<T> {
    /// An answer that is there.
    pub const fn ready(answer: T) -> Self {
        Self::Ready(Some(answer))
    }

    /// An answer that `future` will give.
    pub fn later(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self::Boxed(Box::pin(future))
    }
}

impl<T: Send + 'static> MaybeReady<T> {
    /// This answer, turned into another by `f`; at once if it is there.
    pub fn map<U>(self, f: impl FnOnce(T) -> U + Send + 'static) -> MaybeReady<U> {
        match self {
            Self::Ready(answer) => MaybeReady::Ready(answer.map(f)),
            Self::Boxed(future) => MaybeReady::later(async move { f(future.await) }),
        }
    }
}

// Nothing in it is pinned in place: the future that waits lives in a box.
impl<T> Unpin for MaybeReady<T> {}

impl<T> Future for MaybeReady<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match &mut *self {
            Self::Ready(answer) => {
                Poll::Ready(answer.take().expect("polled again after it was ready"))
            }
            Self::Boxed(future) => future.as_mut().poll(cx),
        }
    }
}

impl<T> fmt::Debug for MaybeReady<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready(_) => "MaybeReady::Ready",
            Self::Boxed(_) => "MaybeReady::Boxed",
        })
    }
}

fn _assert_send(answer: MaybeReady<u8>) -> impl Future<Output = u8> + Send + Unpin {
    answer
}
