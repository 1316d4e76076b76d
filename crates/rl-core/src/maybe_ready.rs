use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A future that is ready immediately, or waits in a box.
///
/// The type has a name, so a middleware can store it in its own future. It allocates memory only if
/// it has to wait.
///
/// # Panics
///
/// Like most futures, it panics if it is polled again after it was ready.
#[must_use = "futures do nothing unless awaited"]
pub enum MaybeReady<T> {
    /// The output; `None` after the future was polled.
    Ready(Option<T>),
    /// A future that has to wait.
    Boxed(Pin<Box<dyn Future<Output = T> + Send>>),
}

impl<T> MaybeReady<T> {
    /// Creates a future that is ready.
    pub const fn ready(answer: T) -> Self {
        Self::Ready(Some(answer))
    }

    /// Creates a future that waits for `future`.
    pub fn later(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self::Boxed(Box::pin(future))
    }
}

impl<T: Send + 'static> MaybeReady<T> {
    /// Returns a future whose output is the output of this one, converted by `f`. It is ready if
    /// this one is.
    pub fn map<U>(self, f: impl FnOnce(T) -> U + Send + 'static) -> MaybeReady<U> {
        match self {
            Self::Ready(answer) => MaybeReady::Ready(answer.map(f)),
            Self::Boxed(future) => MaybeReady::later(async move { f(future.await) }),
        }
    }
}

/// Waits for both results, even if the first is an error. Returns the first error.
pub(crate) fn both<E: Send + 'static>(
    first: MaybeReady<Result<(), E>>,
    second: MaybeReady<Result<(), E>>,
) -> MaybeReady<Result<(), E>> {
    match (first, second) {
        (MaybeReady::Ready(Some(Ok(()))), second) => second,
        (first, second) => MaybeReady::later(async move {
            let (first, second) = (first.await, second.await);
            first.and(second)
        }),
    }
}

/// Creates a future that is ready with `Ok(())`, for an operation that has nothing to do.
pub(crate) const fn done<E>() -> MaybeReady<Result<(), E>> {
    MaybeReady::ready(Ok(()))
}

// The boxed future is pinned in its box, so this enum can be moved.
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
