//! The gRPC services of the server.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Bytes;
use http::{Request, Response};
use http_body::Body;
use tonic::body::Body as TonicBody;
use tonic::codegen::StdError;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};
use tower::Service;

use super::{EnvoyService, KuadrantService};
use crate::service::DecisionService;

/// The compiled set of the files in `proto/`.
pub(super) const DESCRIPTIONS: &[u8] = include_bytes!("../../proto/services.bin");

/// The health that the server reports to gRPC clients.
#[derive(Clone, Debug)]
pub struct Health(HealthReporter);

impl Health {
    /// Sets whether the server and its services are healthy. A server that shuts down sets it to
    /// false first, so that gateways choose another one.
    pub async fn set(&self, is_healthy: bool) {
        let status = if is_healthy { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in ["", EnvoyService::NAME, KuadrantService::NAME] {
            self.0.set_service_status(service, status).await;
        }
    }
}

/// The gRPC services of the server.
#[derive(Clone, Debug)]
pub struct GrpcServices {
    envoy: EnvoyService,
    others: Routes,
}

impl<B> Service<Request<B>> for GrpcServices
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = Response<TonicBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // A router costs a call of Envoy a twentieth of its time, and this path never varies.
        let path = request.uri().path();
        let service = path.strip_prefix('/').and_then(|path| path.split_once('/'));
        if service.is_some_and(|(service, _)| service == EnvoyService::NAME) {
            return self.envoy.call(request);
        }
        Box::pin(self.others.call(request))
    }
}

/// Returns the services of Envoy and Kuadrant, with those of health and reflection.
///
/// The server is reported as healthy until [`Health::set`] is called.
///
/// # Panics
///
/// Never panics, because the descriptions of the services are valid.
pub async fn services(service: &DecisionService) -> (GrpcServices, Health) {
    let (reporter, health_service) = health_reporter();
    let health = Health(reporter);
    health.set(true).await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTIONS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // Some clients use only one of the versions.
    let v1 = reflection().build_v1().expect("valid descriptions");
    let v1alpha = reflection().build_v1alpha().expect("valid descriptions");
    let envoy = EnvoyService::new(service.clone());
    let others = Routes::new(KuadrantService::new(service.clone()))
        .add_service(health_service)
        .add_service(v1)
        .add_service(v1alpha);
    (GrpcServices { envoy, others }, health)
}
