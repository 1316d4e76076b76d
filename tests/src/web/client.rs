//! The response as a client receives it.

use std::fmt::Write;
use std::future::Future;

use reqwest::header::HeaderMap;
use reqwest::{Client, RequestBuilder};

/// Returns a client that uses no proxy and follows no redirects.
///
/// # Panics
///
/// Panics if the client cannot be created.
#[must_use]
pub fn client() -> Client {
    let builder = Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
    builder.build().expect("a client")
}

/// Sends a request, and reads the whole response.
pub trait Fetch {
    /// Sends the request, and returns the response.
    ///
    /// # Panics
    ///
    /// Panics if the server sends no response.
    fn fetch(self) -> impl Future<Output = Answer> + Send;
}

impl Fetch for RequestBuilder {
    async fn fetch(self) -> Answer {
        let response = self.send().await.expect("the server answers");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.text().await.expect("a body of text");
        Answer { status, headers, body }
    }
}

/// The response of a server.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: String,
    headers: HeaderMap,
}

impl Answer {
    /// Returns the value of the header called `name`.
    ///
    /// # Panics
    ///
    /// Panics if there are several lines with this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.lines(name);
        assert!(lines.len() <= 1, "{name}: {lines:?}");
        lines.first().copied()
    }

    /// Returns the values of all lines called `name`, in order.
    ///
    /// # Panics
    ///
    /// Panics if a value is not visible ASCII.
    #[must_use]
    pub fn lines(&self, name: &str) -> Vec<&str> {
        let lines = self.headers.get_all(name).iter();
        lines.map(|value| value.to_str().expect("visible ASCII")).collect()
    }

    /// Returns the status and the fields of the Open Bank family (limit, remaining and reset), such
    /// as `200 10-9-60`. A `Retry-After` is appended as `, retry 60`. Missing fields are omitted.
    #[must_use]
    pub fn standing(&self) -> String {
        let fields = ["limit", "remaining", "reset"];
        let values = fields.map(|name| self.header(&format!("x-rate-limit-{name}")));
        let mut standing = self.status.to_string();
        if let [Some(limit), Some(remaining), reset] = values {
            write!(standing, " {limit}-{remaining}").expect("a String takes all text");
            reset.iter().for_each(|reset| standing.extend(["-", reset]));
        }
        if let Some(seconds) = self.header("retry-after") {
            write!(standing, ", retry {seconds}").expect("a String takes all text");
        }
        standing
    }

    /// Returns all header lines that a limiter can write, as `name: value`, sorted by name.
    #[must_use]
    pub fn limit_lines(&self) -> Vec<String> {
        let ours = |name: &str| {
            name.contains("ratelimit") || name.contains("rate-limit") || name == "retry-after"
        };
        let mut names: Vec<_> =
            self.headers.keys().map(|name| name.as_str()).filter(|name| ours(name)).collect();
        names.sort_unstable();
        let lines = |name: &str| {
            let lines = self.lines(name).into_iter();
            lines.map(|value| format!("{name}: {value}")).collect::<Vec<_>>()
        };
        names.into_iter().flat_map(lines).collect()
    }
}
