//! A gateway's health as others see it: the control API's answer, and gRPC's `Watch`.
//!
//! 1. The control API's address is read where other services find it: in `gateways`.

use std::time::Duration;

use gateway_proto::framing::encode;
use gateway_proto::health::health_check_response::ServingStatus;
use gateway_proto::health::{HealthCheckRequest, HealthCheckResponse};
use gateway_proto::path;
use gateway_testbed::node::{Arrival, Target};
use gateway_testbed::raw::RawCall;
use http::HeaderMap;
use prost::Message;
use serde_json::Value;
use sqlx::PgConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{SOON, within};

/// The URL of a gateway's control API, as other services find it.
pub async fn control_url(connection: &mut PgConnection, gateway: &str) -> String {
    let (url,): (String,) = sqlx::query_as("SELECT internal_url FROM gateways WHERE id = $1")
        .bind(gateway)
        .fetch_one(connection)
        .await
        .expect("the gateway's row");
    url
}

/// Where the control API of a gateway is.
pub async fn control_address(connection: &mut PgConnection, gateway: &str) -> String {
    let (url,): (String,) = sqlx::query_as("SELECT internal_url FROM gateways WHERE id = $1")
        .bind(gateway)
        .fetch_one(connection)
        .await
        .expect("the gateway's row");
    let address = url.rsplit("//").next().unwrap_or_default();
    address.trim_end_matches('/').to_owned()
}

/// `GET /v1/health`: the HTTP status and what it says.
pub async fn health(control: &str) -> (u16, Value) {
    let (code, body) = get(control, "/v1/health").await;
    let value = serde_json::from_str(&body);
    (code, value.unwrap_or_else(|error| panic!("health is not JSON ({error}): {body}")))
}

/// A GET of the control API: the HTTP status and the body.
pub async fn get(control: &str, path: &str) -> (u16, String) {
    let asking = async {
        let mut stream = TcpStream::connect(control).await?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: {control}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = within(SOON, "the control API's answer", asking).await.expect("the control API");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let code = head.split_ascii_whitespace().nth(1).and_then(|code| code.parse().ok());
    (code.unwrap_or(0), body.to_owned())
}

/// How many sessions each shard has, in the order of the shards.
pub fn sessions_by_shard(health: &Value) -> Vec<u64> {
    let shards = health["shards"].as_array().map(Vec::as_slice).unwrap_or_default();
    shards.iter().map(|shard| shard["counters"]["sessions"].as_u64().unwrap_or(0)).collect()
}

/// `grpc.health.v1.Health/Watch` of the whole gateway.
pub struct HealthWatch {
    call: RawCall,
}

impl HealthWatch {
    /// Opens it; gives the first status too.
    pub async fn open(target: &Target) -> (Self, ServingStatus) {
        let opening = RawCall::open(target, path::HEALTH_WATCH, HeaderMap::new());
        let mut call = within(SOON, "a Watch of the health", opening).await.expect("a Watch");
        call.send_bytes(encode(&HealthCheckRequest::default()));
        call.half_close();
        let mut watch = Self { call };
        let first = watch.next(SOON).await;
        (watch, first)
    }

    /// The next status that the gateway tells.
    pub async fn next(&mut self, limit: Duration) -> ServingStatus {
        match self.call.next(limit).await {
            Some(Arrival::Message(message)) => {
                HealthCheckResponse::decode(message).expect("a HealthCheckResponse").status()
            }
            Some(Arrival::Ended(end)) => panic!("the Watch of the health ended: {end:?}"),
            None => panic!("not within {limit:?}: the next status of the health"),
        }
    }

    /// Waits until the gateway tells `wanted`.
    pub async fn becomes(&mut self, wanted: ServingStatus, limit: Duration) {
        let what = format!("the health becomes {wanted:?}");
        within(limit, &what, async { while self.next(limit).await != wanted {} }).await;
    }
}
