//! A collector receives the counts of `/metrics` through OTLP.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry::metrics::MeterProvider;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{MetricExporter, Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AttributeValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{AggregationTemporality, NumberDataPoint};
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use prost::Message;
use rl_tests::RedisServer;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::Service;

/// The values of series, by their names and their labels in alphabetical order.
type Values = BTreeMap<(String, Vec<String>), f64>;

/// An HTTP client for the exporter. The client sends requests on the runtime of the test.
#[derive(Debug)]
struct Client {
    runtime: Handle,
    client: reqwest::Client,
}

impl HttpClient for Client {
    fn send_bytes<'this, 'sent>(
        &'this self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'sent>>
    where
        'this: 'sent,
        Self: 'sent,
    {
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move {
            let (head, body) = request.into_parts();
            let sent = client.post(head.uri.to_string()).headers(head.headers).body(body);
            let response = sent.send().await?;
            let status = response.status();
            let mut answer = Response::new(response.bytes().await?);
            *answer.status_mut() = status;
            Ok(answer)
        });
        Box::pin(async move { sent.await? })
    }
}

/// Serves a collector. Returns its address, and a channel with the requests that it receives.
async fn collector() -> (String, mpsc::Receiver<ExportMetricsServiceRequest>) {
    async fn receive(
        State(received): State<mpsc::Sender<ExportMetricsServiceRequest>>,
        headers: HeaderMap,
        body: Bytes,
    ) -> StatusCode {
        assert_eq!(headers["content-type"], "application/x-protobuf");
        received.send(ExportMetricsServiceRequest::decode(body).unwrap()).await.unwrap();
        StatusCode::OK
    }
    let (sender, receiver) = mpsc::channel(8);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let app = Router::new().route("/v1/metrics", post(receive)).with_state(sender);
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, receiver)
}

fn value_of_point(name: &str, point: &NumberDataPoint) -> ((String, Vec<String>), f64) {
    let labels = point.attributes.iter().map(|attribute| {
        let value = attribute.value.as_ref().and_then(|value| value.value.clone());
        let Some(AttributeValue::StringValue(value)) = value else { panic!("{attribute:?}") };
        format!("{}=\"{value}\"", attribute.key)
    });
    let mut labels: Vec<String> = labels.collect();
    labels.sort();
    let value = match point.value {
        Some(Value::AsDouble(value)) => value,
        Some(Value::AsInt(value)) => value as f64,
        None => panic!("{point:?}"),
    };
    ((name.to_owned(), labels), value)
}

fn values_of_request(request: &ExportMetricsServiceRequest) -> Values {
    let scopes = request.resource_metrics.iter().flat_map(|resource| &resource.scope_metrics);
    let mut values = Values::new();
    for metric in scopes.flat_map(|scope| &scope.metrics) {
        let points = match metric.data.as_ref().unwrap() {
            Data::Gauge(gauge) => &gauge.data_points,
            Data::Sum(sum) => {
                assert!(sum.is_monotonic, "{}", metric.name);
                let temporality = AggregationTemporality::Cumulative as i32;
                assert_eq!(sum.aggregation_temporality, temporality, "{}", metric.name);
                &sum.data_points
            }
            other => panic!("{}: {other:?}", metric.name),
        };
        values.extend(points.iter().map(|point| value_of_point(&metric.name, point)));
    }
    values
}

/// Reads the text of `/metrics`. No label has a comma.
fn values_of_text(text: &str) -> Values {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let value = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap();
        let labels = labels.trim_end_matches('}').split(',');
        let mut labels: Vec<_> = labels.map(str::to_owned).collect();
        labels.sort();
        ((name.to_owned(), labels), value.parse().unwrap())
    };
    lines.map(value).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_receives_the_counts_of_the_metrics_page() {
    let redis = RedisServer::start();
    let service = Service::new(&redis).await;
    for number in 0..200 {
        service.send(number).await;
    }
    let (address, mut received) = collector().await;
    let exporter = MetricExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(format!("http://{address}/v1/metrics"))
        .with_http_client(Client { runtime: Handle::current(), client: reqwest::Client::new() })
        .build()
        .unwrap();
    let reader = PeriodicReader::builder(exporter).with_interval(Duration::from_secs(3_600));
    let provider = SdkMeterProvider::builder().with_reader(reader.build()).build();
    rl_metrics::opentelemetry::register(&service.metrics, &provider.meter("rl"));
    let flushed = tokio::task::spawn_blocking(move || provider.force_flush());
    let request = received.recv().await.unwrap();
    flushed.await.unwrap().unwrap();

    let (mut exported, mut page) =
        (values_of_request(&request), values_of_text(&service.metrics.render()));
    for values in [&mut exported, &mut page] {
        // This value is the time since the change log was last read. It differs, because some time
        // passes between the export and the rendering of the page.
        values.retain(|(name, _), _| name != "rl_records_lag_seconds");
    }
    assert!(page.len() > 300, "{}", page.len());
    assert_eq!(exported, page);
}
