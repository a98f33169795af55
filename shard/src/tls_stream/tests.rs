//! The stream against rustls' own client, over a wire that gives and takes as little as a test says.
//!
//! Both ends run in the test's own turns, so where a record is cut, or a socket is full, is no matter of luck. What TLS
//! itself promises is rustls' to test; here it is that nothing is lost, held or said twice on the way.

#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::rc::Rc;
use std::task::Waker;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::*;

/// Both directions between the ends.
struct Wire {
    to_server: VecDeque<u8>,
    to_client: Vec<u8>,
    /// What one read brings at most.
    piece: usize,
    /// What waits for the client at most.
    room: usize,
    cut: bool,
}

struct End(Rc<RefCell<Wire>>);

impl AsyncRead for End {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut wire = self.0.borrow_mut();
        if wire.to_server.is_empty() && !wire.cut {
            return Poll::Pending;
        }
        let taken = wire.to_server.len().min(wire.piece).min(buffer.remaining());
        let bytes: Vec<u8> = wire.to_server.drain(..taken).collect();
        buffer.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for End {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut wire = self.0.borrow_mut();
        let taken = bytes.len().min(wire.room - wire.to_client.len());
        if taken == 0 {
            return Poll::Pending;
        }
        wire.to_client.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().cut = true;
        Poll::Ready(Ok(()))
    }
}

/// A client, the wire, and what the client has read.
struct Client {
    session: ClientConnection,
    wire: Rc<RefCell<Wire>>,
    has: Vec<u8>,
}

impl Client {
    /// Sends all it has to send, and takes all that there is.
    fn turn(&mut self) -> Result<(), rustls::Error> {
        let arrived = std::mem::take(&mut self.wire.borrow_mut().to_client);
        let mut arrived = &arrived[..];
        let mut outcome = Ok(());
        while !arrived.is_empty() && outcome.is_ok() {
            self.session.read_tls(&mut arrived).unwrap();
            outcome = self.session.process_new_packets().map(drop);
            let mut plaintext = [0; 4096];
            while let Ok(read @ 1..) = self.session.reader().read(&mut plaintext) {
                self.has.extend_from_slice(&plaintext[..read]);
            }
        }
        let mut sends = Vec::new();
        while self.session.wants_write() {
            self.session.write_tls(&mut sends).unwrap();
        }
        self.wire.borrow_mut().to_server.extend(sends);
        outcome
    }

    fn write(&mut self, bytes: &[u8]) {
        self.session.set_buffer_limit(None);
        self.session.writer().write_all(bytes).unwrap();
        self.turn().unwrap();
    }
}

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// The two sides' settings. The client's certificate names so many hosts, and is shown so many times.
fn configs(hosts: usize, times: usize) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let root = params.self_signed(&key).unwrap().der().clone();
    let authority = Issuer::new(params, key);
    let leaf = |names: Vec<String>| -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
        (vec![leaf.der().clone()], PrivatePkcs8KeyDer::from(key.serialize_der()).into())
    };
    let mut roots = RootCertStore::empty();
    roots.add(root).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let (chain, key) = leaf(vec!["localhost".to_owned()]);
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots.clone()), Arc::clone(&provider))
            .build()
            .unwrap();
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .unwrap();
    server.send_tls13_tickets = 0;
    let (chain, key) = leaf((0..hosts).map(|host| format!("host-{host:05}.example")).collect());
    let chain = vec![chain[0].clone(); times];
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    (Arc::new(server), Arc::new(client))
}

/// The outcome of a handshake over a wire that brings so much at once.
fn shake_hands(hosts: usize, times: usize, piece: usize) -> (Result<TlsStream<End>, Failed<End>>, Client) {
    let (server, client) = configs(hosts, times);
    let session = ClientConnection::new(client, "localhost".try_into().unwrap()).unwrap();
    let wire = Wire { to_server: VecDeque::new(), to_client: Vec::new(), piece, room: 1 << 20, cut: false };
    let wire = Rc::new(RefCell::new(wire));
    let mut client = Client { session, wire: Rc::clone(&wire), has: Vec::new() };
    let mut accepting = std::pin::pin!(TlsStream::accept(server, End(wire)));
    for _ in 0..100 {
        let _ = client.turn();
        if let Poll::Ready(outcome) = accepting.as_mut().poll(&mut context()) {
            let _ = client.turn();
            return (outcome, client);
        }
    }
    panic!("the handshake does not end");
}

fn pair() -> (TlsStream<End>, Client) {
    pair_by(usize::MAX)
}

fn pair_by(piece: usize) -> (TlsStream<End>, Client) {
    let (stream, client) = shake_hands(1, 1, piece);
    (stream.map_err(|(error, _)| error).unwrap(), client)
}

/// All plaintext that is there.
fn read_all(stream: &mut TlsStream<End>) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    loop {
        let mut space = [0; 1000];
        let mut buffer = ReadBuf::new(&mut space);
        match Pin::new(&mut *stream).poll_read(&mut context(), &mut buffer) {
            Poll::Ready(Ok(())) if buffer.filled().is_empty() => return Ok(read),
            Poll::Ready(Ok(())) => read.extend_from_slice(buffer.filled()),
            Poll::Ready(Err(error)) => return Err(error),
            Poll::Pending => return Ok(read),
        }
    }
}

fn write(stream: &mut TlsStream<End>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    Pin::new(stream).poll_write(&mut context(), bytes)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8).collect()
}

fn holds(stream: &TlsStream<End>) -> usize {
    stream.partial.capacity() + stream.plaintext.capacity() + stream.outgoing.capacity()
}

#[test]
fn bytes_arrive_whole_however_the_wire_cuts_them_and_nothing_is_held_afterwards() {
    for piece in [1, 3, 600, 16_384, usize::MAX] {
        let (mut stream, mut client) = pair_by(piece);
        assert!(stream.session().peer_certificates().is_some());
        assert_eq!(holds(&stream), 0, "after the handshake, in pieces of {piece}");
        for length in [1, 100, RECORD_BYTES, 100_000] {
            client.write(&pattern(length));
            assert!(read_all(&mut stream).unwrap() == pattern(length), "{length} in pieces of {piece}");
            let mut left = &pattern(length)[..];
            while !left.is_empty() {
                let Poll::Ready(Ok(taken)) = write(&mut stream, left) else { panic!("there is room") };
                assert!(taken == left.len().min(SEALED_BYTES));
                left = &left[taken..];
            }
            client.turn().unwrap();
            assert!(std::mem::take(&mut client.has) == pattern(length), "{length} to the client");
            assert_eq!(holds(&stream), 0, "after {length} in pieces of {piece}");
        }
    }
}

#[test]
fn a_record_in_part_is_kept_until_its_rest_comes_though_something_is_written_between() {
    let (mut stream, mut client) = pair();
    client.write(b"first");
    let mut rest = client.wire.borrow_mut().to_server.split_off(9);
    assert!(read_all(&mut stream).unwrap().is_empty());
    assert!(stream.partial.len() == 9);
    assert!(matches!(write(&mut stream, b"between"), Poll::Ready(Ok(7))));
    client.wire.borrow_mut().to_server.append(&mut rest);
    assert_eq!(read_all(&mut stream).unwrap(), b"first");
    client.turn().unwrap();
    assert_eq!(client.has, b"between");
    assert_eq!(holds(&stream), 0);
}

#[test]
fn a_certificate_that_spans_records_is_taken_and_one_without_end_is_not() {
    for piece in [7, 5_000, usize::MAX] {
        let (outcome, _) = shake_hands(1_500, 1, piece);
        assert!(outcome.is_ok(), "in pieces of {piece}");
    }
    let (outcome, _) = shake_hands(1_500, 3, usize::MAX);
    let (error, _) = outcome.err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
}

#[test]
fn a_peer_that_reads_nothing_costs_a_few_records() {
    let (mut stream, mut client) = pair();
    client.wire.borrow_mut().room = 100;
    let bytes = pattern(3 * SEALED_BYTES);
    assert!(matches!(write(&mut stream, &bytes), Poll::Ready(Ok(SEALED_BYTES))));
    for _ in 0..3 {
        assert!(write(&mut stream, &bytes[SEALED_BYTES..]).is_pending());
        assert!(Pin::new(&mut stream).poll_flush(&mut context()).is_pending());
        assert!(holds(&stream) <= SEALED_BYTES + 2 * RECORDS_AT_ONCE * SEAL_BYTES);
    }
    // It reads again: nothing is lost, nothing comes twice.
    let mut sent = SEALED_BYTES;
    while sent < bytes.len() || Pin::new(&mut stream).poll_flush(&mut context()).is_pending() {
        client.turn().unwrap();
        if let Poll::Ready(taken) = write(&mut stream, &bytes[sent..]) {
            sent += taken.unwrap();
        }
    }
    client.turn().unwrap();
    assert!(client.has == bytes);
}

#[test]
fn slices_go_into_few_records() {
    let (mut stream, mut client) = pair();
    let parts: Vec<Vec<u8>> = [0, 10, 0, 300, 2 * SEALED_BYTES].map(pattern).into();
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let taken = Pin::new(&mut stream).poll_write_vectored(&mut context(), &slices);
    assert!(matches!(taken, Poll::Ready(Ok(SEALED_BYTES))));
    let sent = client.wire.borrow().to_client.clone();
    let (mut at, mut records) = (0, 0);
    while at < sent.len() {
        at += 5 + usize::from(u16::from_be_bytes([sent[at + 3], sent[at + 4]]));
        records += 1;
    }
    assert_eq!(records, RECORDS_AT_ONCE);
    client.turn().unwrap();
    assert!(client.has == parts.concat()[..SEALED_BYTES]);
    let taken = Pin::new(&mut stream).poll_write_vectored(&mut context(), &slices[..2]);
    assert!(matches!(taken, Poll::Ready(Ok(10))));
    assert!(matches!(write(&mut stream, &[]), Poll::Ready(Ok(0))));
}

#[test]
fn keys_are_renewed_when_the_peer_asks() {
    let (mut stream, mut client) = pair();
    for round in 0..5 {
        client.session.refresh_traffic_keys().unwrap();
        client.write(&pattern(round * 1_000 + 1));
        assert!(read_all(&mut stream).unwrap() == pattern(round * 1_000 + 1));
        assert!(matches!(write(&mut stream, b"answer"), Poll::Ready(Ok(6))));
        client.turn().unwrap();
        assert_eq!(std::mem::take(&mut client.has), b"answer");
        assert_eq!(holds(&stream), 0);
    }
}

#[test]
fn who_is_refused_is_told_why() {
    let (mut stream, mut client) = pair();
    client.wire.borrow_mut().to_server.extend(b"\x17\x03\x03\x00\x20 these bytes are no sealed record");
    let error = read_all(&mut stream).unwrap_err();
    assert!(error.get_ref().unwrap().is::<rustls::Error>(), "{error}");
    let told = client.turn().unwrap_err();
    assert_eq!(told, rustls::Error::AlertReceived(rustls::AlertDescription::BadRecordMac));
    assert_eq!(holds(&stream), 0);
    // It stays refused.
    assert!(matches!(write(&mut stream, b"more"), Poll::Ready(Err(_))));
}

#[test]
fn an_end_is_told_apart_from_a_cut() {
    let (mut stream, mut client) = pair();
    client.session.send_close_notify();
    client.write(b"");
    assert_eq!(read_all(&mut stream).unwrap(), b"");
    assert!(stream.peer_closed);
    // This side may go on, and ends by itself.
    assert!(matches!(write(&mut stream, b"last words"), Poll::Ready(Ok(10))));
    for _ in 0..2 {
        assert!(Pin::new(&mut stream).poll_shutdown(&mut context()).is_ready());
    }
    client.turn().unwrap();
    assert_eq!(client.has, b"last words");
    let (mut stream, mut client) = pair();
    client.write(b"half a wo");
    client.wire.borrow_mut().cut = true;
    let mut space = [0; 100];
    let mut buffer = ReadBuf::new(&mut space);
    let read = Pin::new(&mut stream).poll_read(&mut context(), &mut buffer);
    assert!(matches!(read, Poll::Ready(Ok(()))) && buffer.filled() == b"half a wo");
    assert_eq!(read_all(&mut stream).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn records_of_one_byte_cost_what_they_take_and_whole_ones_their_data() {
    let (mut stream, mut client) = pair();
    let _ = stream.take_cost();
    client.write(&pattern(100_000));
    assert!(read_all(&mut stream).unwrap() == pattern(100_000));
    let whole = stream.take_cost();
    assert!(whole < 1_000, "{whole}");
    for byte in pattern(500) {
        client.write(&[byte]);
    }
    assert!(read_all(&mut stream).unwrap() == pattern(500));
    let tiny = stream.take_cost();
    assert!(tiny > 500 * 20, "{tiny}");
}
