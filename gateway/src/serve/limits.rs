//! What the kernel must grant before sessions can be promised: open files, io_uring, a port.
//!
//! 1. The soft limit of open files is raised to the hard one; what `max_streams` promises must fit, and what strangers
//!    may hold beside.
//! 2. A port that another process listens on is refused, though `SO_REUSEPORT` would share it.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use gateway_control::api::MAX_DESCRIPTORS;
use gateway_shard::{MAX_ASIDE, bind_reuse_port, preflight};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Protocol, Socket, Type};

use crate::config::Config;
use crate::error::GatewayError;

/// Descriptors of a shard beside its sessions': rings, timers, its listener.
const FDS_PER_SHARD: usize = 32;
/// Database connections and files, and the connections of plain health.
const FDS_BESIDE_SHARDS: usize = 128 + 64;
/// How long the sockets of a killed predecessor may still stand.
const PREDECESSOR_LINGERS: Duration = Duration::from_secs(2);
const PORT_PROBE_EVERY: Duration = Duration::from_millis(5);

/// Checks and raises what the threads will need.
pub(super) fn prepare(config: &Config, shards: usize) -> Result<(), GatewayError> {
    preflight().map_err(|error| GatewayError::Machine(error.to_string()))?;
    let streams = config.admission.max_streams;
    raise_open_files(needed(config, shards), streams)
}

/// The files that may be open at once, those that strangers hold among them: who has proved nothing yet, at the
/// shards and at the control API.
fn needed(config: &Config, shards: usize) -> usize {
    let connections = config.admission.max_streams + config.admission.anonymous_connections;
    let of_a_shard = FDS_PER_SHARD + config.admission.handshakes_at_once + MAX_ASIDE;
    let of_the_api = if config.control.api_listen.is_some() { MAX_DESCRIPTORS } else { 0 };
    connections + shards * of_a_shard + of_the_api + FDS_BESIDE_SHARDS
}

fn raise_open_files(needed: usize, streams: usize) -> Result<(), GatewayError> {
    let limit = getrlimit(Resource::Nofile);
    let may_open = limit.maximum.map_or(usize::MAX, |hard| usize::try_from(hard).unwrap_or(usize::MAX));
    if may_open < needed {
        return Err(GatewayError::Machine(format!(
            "this process may open {may_open} files, but admission.max_streams of {streams} needs {needed}: raise \
             LimitNOFILE in the service's unit (or `ulimit -Hn`) to at least {needed}, or lower admission.max_streams"
        )));
    }
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised)
            && limit.current.is_some_and(|soft| soft < needed as u64)
        {
            return Err(GatewayError::Machine(format!(
                "the limit of open files can't be raised to {needed}: {error}"
            )));
        }
    }
    Ok(())
}

/// One listener a shard, all on one port.
pub(super) fn bind_listeners(
    address: SocketAddr,
    backlog: u32,
    shards: usize,
) -> Result<(Vec<TcpListener>, SocketAddr), GatewayError> {
    let refused = |error: io::Error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => "another process listens there: stop it, or change listen.address",
            io::ErrorKind::PermissionDenied => {
                "ports below 1024 need CAP_NET_BIND_SERVICE: add it to the unit, or change listen.address"
            }
            io::ErrorKind::AddrNotAvailable => "no interface of this machine has it: change listen.address",
            _ => "change listen.address",
        };
        GatewayError::Machine(format!("can't listen on {address}: {error}; {hint}"))
    };
    refuse_shared_port(address, PREDECESSOR_LINGERS).map_err(refused)?;
    let first = bind_reuse_port(address, backlog).map_err(refused)?;
    let bound = first.local_addr().map_err(refused)?;
    let mut listeners = vec![first];
    for _ in 1..shards {
        listeners.push(bind_reuse_port(bound, backlog).map_err(refused)?);
    }
    Ok((listeners, bound))
}

/// Fails where somebody listens: without `SO_REUSEPORT`, the kernel does not share.
///
/// The kernel closes the sockets of a killed gateway some milliseconds after the process is gone: its
/// io_uring still held them. Nothing signals that, so it is tried again for up to `patience`.
fn refuse_shared_port(address: SocketAddr, patience: Duration) -> io::Result<()> {
    if address.port() == 0 {
        return Ok(());
    }
    let deadline = Instant::now() + patience;
    loop {
        let probe = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        probe.set_reuse_address(true)?;
        if address.is_ipv6() {
            probe.set_only_v6(false)?;
        }
        match probe.bind(&address.into()) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(PORT_PROBE_EVERY);
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_strangers_may_hold_is_beside_what_sessions_are_promised() {
        let mut config = Config::default();
        config.admission.max_streams = 10_000;
        let without_api = needed(&config, 2);
        assert!(without_api >= 10_000 + 2 * 1024, "those aside at two shards: {without_api}");
        config.control.api_listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let more = needed(&config, 2) - without_api;
        assert!(more >= 128 + 256 + 32, "callers, handshakes, and who is turned away: {more}");
    }

    #[test]
    fn sessions_that_the_open_files_do_not_allow_are_not_promised() {
        let error = raise_open_files(usize::MAX - 1, 7).expect_err("nobody may open that many");
        assert!(error.to_string().contains("lower admission.max_streams"), "{error}");
        raise_open_files(10, 1).expect("ten files are few");
    }

    #[test]
    fn a_port_is_shared_between_shards_but_with_no_other_gateway() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (listeners, bound) = bind_listeners(any, 16, 3).expect("a free port");
        assert_eq!(listeners.len(), 3);
        assert!(listeners.iter().all(|listener| listener.local_addr().is_ok_and(|address| address == bound)));
        let error = bind_listeners(bound, 16, 1).expect_err("it is taken");
        assert!(error.to_string().contains("another process listens there"), "{error}");
        drop(listeners);
        bind_listeners(bound, 16, 1).expect("it is free again");
    }
}
