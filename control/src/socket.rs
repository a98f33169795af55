//! TCP as this thread puts it under TLS, whoever has dialled.
//!
//! 1. What is written leaves at once, and a read takes what is there.

use tokio::io::BufReader;
use tokio::net::TcpStream;

/// One read, where TLS by itself takes 4 KiB.
const READ_BYTES: usize = 64 << 10;

/// A socket that is read in large pieces.
pub(crate) fn buffered(socket: TcpStream) -> BufReader<TcpStream> {
    // Only latency is lost without it.
    let _ = socket.set_nodelay(true);
    BufReader::with_capacity(READ_BYTES, socket)
}
