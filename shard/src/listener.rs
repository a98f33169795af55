//! The listening sockets: one a shard, all on one port, between which the kernel spreads what
//! connects.
//!
//! It owns the options that accepted sockets inherit (keepalive, no delay). It never accepts: that is
//! left to `accept`.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

/// How many connections may wait to be accepted; the kernel lowers it to `net.core.somaxconn`.
pub const DEFAULT_BACKLOG: u32 = 8192;

const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(15))
    .with_retries(4);

/// Binds a listener that other shards can bind again (`SO_REUSEPORT`). With port 0 the kernel picks
/// one: bind the first, then the others on the port of its `local_addr`.
pub fn bind_reuse_port(addr: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    // A restarted gateway must not wait for the TIME_WAIT of its predecessor's connections.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // Accepted sockets inherit both. Heartbeats find a dead session; this finds a dead watcher.
    socket.set_tcp_keepalive(&KEEPALIVE)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_shards_share_a_port_that_the_kernel_picked() {
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        let first = bind_reuse_port(any, DEFAULT_BACKLOG).expect("a free port");
        let picked = first.local_addr().expect("bound");
        let second = bind_reuse_port(picked, DEFAULT_BACKLOG).expect("the same port again");
        assert_eq!(second.local_addr().expect("bound"), picked);
    }
}
