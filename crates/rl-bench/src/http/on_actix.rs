//! Services on actix-web, with and without limits. Each has its own worker threads.

use std::fmt::Display;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use actix_extensible_rate_limit::RateLimiter as Extensible;
use actix_extensible_rate_limit::backend::memory::InMemoryBackend;
use actix_extensible_rate_limit::backend::redis::RedisBackend;
use actix_extensible_rate_limit::backend::{
    Backend, SimpleInput, SimpleInputFunctionBuilder, SimpleOutput,
};
use actix_web::dev::{Server, ServerHandle, Service, ServiceRequest};
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::{App, HttpServer, web};
use rl_actix::RateLimit;
use rl_core::{RateLimiter, RedisStore};

use super::LINES;
use crate::Result;
use crate::algorithms::{ENDLESS, six};
use crate::measure::cores;

const HOUR: Duration = Duration::from_secs(3_600);

/// A server that stops when it is dropped.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) address: SocketAddr,
    handle: ServerHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        // The call itself requests the stop. Its future would only wait until the server has
        // stopped.
        drop(self.handle.stop(false));
    }
}

macro_rules! serve {
    (|$app:ident| $wrapped:expr) => {
        start(move |listener| {
            let server = HttpServer::new(move || {
                let $app = App::new();
                $wrapped.route("/", web::get().to(async || "Hello"))
            });
            Ok(server.workers(cores()).disable_signals().listen(listener)?.run())
        })
    };
}

/// Starts a service with a middleware that does nothing. It shows what every middleware costs.
pub(super) fn no_op() -> Result<Running> {
    serve!(|app| app.wrap_fn(|request, service| service.call(request)))
}

/// Starts a service with a middleware that adds three constant header lines.
pub(super) fn lines() -> Result<Running> {
    serve!(|app| app.wrap_fn(|request, service| {
        let answer = service.call(request);
        async {
            let mut response = answer.await?;
            for name in LINES {
                let name = HeaderName::from_static(name);
                response.headers_mut().insert(name, HeaderValue::from_static("1000"));
            }
            Ok(response)
        }
    }))
}

/// Starts a service with our limiter, for six periods and by client address.
pub(super) fn ours() -> Result<Running> {
    limited(RateLimiter::builder().policy(six(ENDLESS)?).build()?)
}

/// Starts a service with our limiter on Redis.
pub(super) async fn ours_on_redis(url: &str) -> Result<Running> {
    let limiter = RateLimiter::builder().policy(six(ENDLESS)?);
    // The deadline is long, so that no request fails if the machine stalls.
    let limiter = limiter.store(RedisStore::connect(url).await?).deadline(Duration::from_secs(20));
    limited(limiter.build()?)
}

fn limited(limiter: RateLimiter) -> Result<Running> {
    serve!(|app| app.wrap(RateLimit::new(limiter.clone())))
}

/// Starts a service with actix-extensible-rate-limit, for one period.
pub(super) fn extensible() -> Result<Running> {
    extensible_on(InMemoryBackend::builder().with_gc_interval(None).build())
}

/// Starts a service with actix-extensible-rate-limit on Redis, for one period.
pub(super) async fn extensible_on_redis(url: &str) -> Result<Running> {
    let client = redis_0_26::Client::open(url)?;
    let connection = redis_0_26::aio::ConnectionManager::new(client).await?;
    extensible_on(RedisBackend::builder(connection).build())
}

fn extensible_on<B>(backend: B) -> Result<Running>
where
    B: Backend<SimpleInput, Output = SimpleOutput> + Clone + Send + 'static,
    B::Error: Into<actix_web::Error> + Display,
{
    serve!(|app| {
        let input = SimpleInputFunctionBuilder::new(HOUR, ENDLESS.into()).peer_ip_key().build();
        app.wrap(Extensible::builder(backend.clone(), input).add_headers().build())
    })
}

/// Starts a service with actix-limitation, for one period.
pub(super) fn limitation(url: &str) -> Result<Running> {
    let mut limiter = actix_limitation::Limiter::builder(url);
    let address = |request: &ServiceRequest| Some(request.peer_addr()?.ip().to_string());
    let limiter = limiter.key_by(address).limit(ENDLESS as usize).period(HOUR).build();
    let limiter = web::Data::new(limiter.map_err(|error| error.to_string())?);
    serve!(|app| app.wrap(actix_limitation::RateLimiter::default()).app_data(limiter.clone()))
}

/// Starts a server in a new thread, which runs an actix system for it.
fn start(
    serve: impl FnOnce(TcpListener) -> std::io::Result<Server> + Send + 'static,
) -> Result<Running> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        actix_web::rt::System::new().block_on(async move {
            match serve(listener) {
                Ok(server) => {
                    let _ = sender.send(Ok(server.handle()));
                    let _ = server.await;
                }
                Err(error) => drop(sender.send(Err(error))),
            }
        });
    });
    Ok(Running { address, handle: receiver.recv()?? })
}
