//! The wire between a node and a gateway, and between a gateway and the services behind it: the messages
//! of `gateway.v1` and `gateway.upstream.v1`, the length-prefix framing of gRPC, the names of calls and
//! headers.
//!
//! The messages are generated at build time from `proto/`, by `protox` and `prost`; no protoc is
//! needed. What the frames mean is decided elsewhere.

pub mod framing;
pub mod http1;
pub mod status_message;

/// Package `gateway.v1`: the calls between a node and a gateway.
#[allow(missing_debug_implementations, clippy::all)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/gateway.v1.rs"));
}

/// Package `gateway.upstream.v1`: the calls that a gateway passes on to the services behind it.
#[allow(missing_debug_implementations, clippy::all)]
pub mod upstream {
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/gateway.upstream.v1.rs"));
    }
}

/// Package `gateway.control.v1`: what a caller of the control API sends to open a tunnel.
#[allow(missing_debug_implementations, clippy::all)]
pub mod control {
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/gateway.control.v1.rs"));
    }
}

/// Package `grpc.health.v1`: the standard health check.
#[allow(missing_debug_implementations, clippy::all)]
pub mod health {
    include!(concat!(env!("OUT_DIR"), "/grpc.health.v1.rs"));
}

/// Request paths.
pub mod path {
    pub const JOIN: &str = "/gateway.v1.NodeGateway/Join";
    pub const RENEW: &str = "/gateway.v1.NodeGateway/Renew";
    pub const FETCH_SECRET: &str = "/gateway.v1.NodeGateway/FetchSecret";
    pub const SESSION: &str = "/gateway.v1.NodeGateway/Session";
    pub const TUNNEL: &str = "/gateway.v1.NodeGateway/Tunnel";
    pub const UPSTREAM_JOIN: &str = "/gateway.upstream.v1.JoinService/Join";
    pub const UPSTREAM_RENEW: &str = "/gateway.upstream.v1.RenewalService/Renew";
    pub const UPSTREAM_FETCH_SECRET: &str = "/gateway.upstream.v1.SecretBroker/FetchSecret";
    pub const UPSTREAM_REAUTHORIZE: &str = "/gateway.upstream.v1.TunnelIam/Reauthorize";
    pub const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
    pub const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";
}

/// Header and trailer names.
pub mod header {
    pub const GRPC_STATUS: &str = "grpc-status";
    pub const GRPC_MESSAGE: &str = "grpc-message";
    pub const GRPC_TIMEOUT: &str = "grpc-timeout";
    /// How many milliseconds the caller must wait before it tries again.
    pub const RETRY_PUSHBACK_MS: &str = "grpc-retry-pushback-ms";
    pub const CONTENT_TYPE_GRPC: &str = "application/grpc";
}
