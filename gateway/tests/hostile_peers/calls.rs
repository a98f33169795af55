//! Calls that are none: not offered, unknown, compressed, without a certificate, or no gRPC at all.
//!
//! 1. A call that gRPC knows gets a gRPC status and a sentence; what is no call, an HTTP status.

use gateway_proto::health::{HealthCheckRequest, HealthCheckResponse};
use gateway_proto::v1::{FetchSecretRequest, JoinRequest, RenewRequest};
use gateway_proto::{framing, path};
use gateway_testbed::node::{Arrival, Target};
use gateway_testbed::raw::{RawCall, RawConnection};
use http::{HeaderMap, Method, Request};
use prost::Message;

use crate::stage::{INVALID_ARGUMENT, Stage, UNAUTHENTICATED, UNIMPLEMENTED, ends};
use crate::support::{SOON, UNAVAILABLE, within};

const NOT_SHOWN: &str = "no client certificate was shown; this call needs the node's certificate";
const NOT_FOUND: u32 = 5;

pub async fn stories(stage: &Stage) {
    let peer = stage.peer("caller").await;
    let tls = stage.world.pki.client_config(None).unwrap();
    let nobody = Target::new(stage.gateway.address(), tls);
    stage.story("calls are not offered", not_offered(&peer)).await;
    stage.story("calls come without a certificate", without_certificate(&nobody)).await;
    stage.story("calls are compressed", compressed(&peer)).await;
    stage.story("requests are no gRPC", no_grpc(&peer)).await;
}

async fn call(target: &Target, path: &str) -> RawCall {
    call_with(target, path, HeaderMap::new()).await
}

async fn call_with(target: &Target, path: &str, headers: HeaderMap) -> RawCall {
    within(SOON, "a call", RawCall::open(target, path, headers)).await.unwrap()
}

async fn not_offered(peer: &Target) {
    let mut tunnel = call(peer, path::TUNNEL).await;
    ends(&mut tunnel, UNIMPLEMENTED, "tunnels are not offered by this gateway").await;
    for (path, name, service) in [
        (path::JOIN, "Join", "join service"),
        (path::RENEW, "Renew", "renewal service"),
        (path::FETCH_SECRET, "FetchSecret", "secret broker"),
    ] {
        let mut call = call(peer, path).await;
        let request = JoinRequest { token: "t".into(), csr_der: vec![1].into(), ..JoinRequest::default() };
        let request = match path {
            path::RENEW => framing::encode(&RenewRequest { csr_der: vec![1].into() }),
            path::FETCH_SECRET => {
                framing::encode(&FetchSecretRequest { name: "n".into(), version: String::new() })
            }
            _ => framing::encode(&request),
        };
        call.send_bytes(request);
        let sentence = format!("{name} is not offered by this gateway: it knows no {service}");
        ends(&mut call, UNAVAILABLE, &sentence).await;
    }
    for path in [
        "/gateway.v1.NodeGateway/Sessions",
        "/gateway.v1.NodeGateway",
        "/",
        "/gateway.v2.NodeGateway/Session",
    ] {
        let mut call = call(peer, path).await;
        ends(&mut call, UNIMPLEMENTED, "no such call; see the service gateway.v1.NodeGateway").await;
    }
    let mut call = call(peer, path::HEALTH_CHECK).await;
    call.send_bytes(framing::encode(&HealthCheckRequest { service: "other".to_owned() }));
    ends(&mut call, NOT_FOUND, "this gateway has no service of that name").await;
}

async fn without_certificate(nobody: &Target) {
    for path in [path::SESSION, path::RENEW, path::FETCH_SECRET, path::TUNNEL] {
        let mut call = call(nobody, path).await;
        ends(&mut call, UNAUTHENTICATED, NOT_SHOWN).await;
    }
    // Join needs none, so what it lacks is told.
    let mut join = call(nobody, path::JOIN).await;
    join.send_bytes(framing::encode(&JoinRequest::default()));
    ends(&mut join, INVALID_ARGUMENT, "token is 0 bytes; it must be 1 to 8192").await;
    // And a load balancer may look at the health.
    let mut check = call(nobody, path::HEALTH_CHECK).await;
    check.send_bytes(framing::encode(&HealthCheckRequest::default()));
    match check.next(SOON).await {
        Some(Arrival::Message(message)) => {
            assert_eq!(HealthCheckResponse::decode(message).unwrap().status, 1, "SERVING");
        }
        other => panic!("{other:?} in the place of the health"),
    }
    ends(&mut check, 0, "").await;
}

async fn compressed(peer: &Target) {
    for encoding in ["gzip", "deflate", "snappy", "x"] {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-encoding", encoding.parse().unwrap());
        let mut call = call_with(peer, path::SESSION, headers).await;
        let sentence = "compressed frames are not supported; send them with identity encoding";
        ends(&mut call, UNIMPLEMENTED, sentence).await;
    }
}

async fn no_grpc(peer: &Target) {
    let grpc = "application/grpc";
    let requests = [
        (Method::GET, path::SESSION, grpc, 405),
        (Method::PUT, path::SESSION, grpc, 405),
        (Method::GET, "/", "text/html", 405),
        (Method::POST, path::SESSION, "application/json", 415),
        (Method::POST, path::SESSION, "application/grpc-web", 415),
        (Method::POST, "/nowhere", "", 415),
    ];
    for (method, path, kind, wanted) in requests {
        let mut request =
            Request::builder().method(method.clone()).uri(format!("https://gateway{path}")).body(()).unwrap();
        if !kind.is_empty() {
            request.headers_mut().insert("content-type", kind.parse().unwrap());
        }
        let (status, _) = status_of(peer, request).await;
        assert_eq!(status, wanted, "{method} {path} as {kind:?}");
    }
    // A list of headers over 16 KiB, as one header and as many.
    let mut large = Request::post(format!("https://gateway{}", path::SESSION)).body(()).unwrap();
    large.headers_mut().insert("content-type", grpc.parse().unwrap());
    large.headers_mut().insert("x-large", "x".repeat(17 << 10).parse().unwrap());
    assert_eq!(status_of(peer, large).await.0, 431);
    let mut many = Request::post(format!("https://gateway{}", path::SESSION)).body(()).unwrap();
    for index in 0..400 {
        many.headers_mut().append("x-many", format!("{index:040}").parse().unwrap());
    }
    assert_eq!(status_of(peer, many).await.0, 431);
}

async fn status_of(peer: &Target, request: Request<()>) -> (u16, HeaderMap) {
    let connection = within(SOON, "a connection", RawConnection::open(peer)).await.unwrap();
    within(SOON, "an answer", connection.request(request)).await.unwrap()
}
