"""What carries the frames of a session, and the unary calls of a node: gRPC, or WebSocket and HTTP/1.1.

Owns: how a stream is opened, what one frame is on the wire, and how its end is told. Never: what a frame means.

1. Both tell an end alike: a gRPC status, its sentence, and what came as trailers or headers.
2. A refusal is an end, not an error: `open` never raises for what a gateway answers.
3. Each is a stock library: `grpcio`, and `websockets` with `http.client`.
"""

import contextlib
import http.client
import queue
import ssl
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from wire import SESSION, TUNNEL, Wire

TRANSPORTS = ("h2", "websocket")
PUSHBACK = "grpc-retry-pushback-ms"
CLOSE_BASE = 4000
PATIENCE_S = 15.0
_HALF_CLOSE = object()


@dataclass
class End:
    """How a stream ended: status code, sentence, trailers."""

    code: grpc.StatusCode
    details: str
    trailers: dict = field(default_factory=dict)

    def __str__(self):
        return f'{self.code.name} "{self.details}"'


class Refused(grpc.RpcError):
    """A unary call that was refused over HTTP/1.1, in the shape of the gRPC library's own error."""

    def __init__(self, end: End):
        super().__init__(str(end))
        self._end = end

    def code(self):
        return self._end.code

    def details(self):
        return self._end.details


class Grpc:
    """A `Session` stream of the gRPC library."""

    def __init__(self, wire: Wire, channel: grpc.Channel, compression):
        self._outgoing = queue.SimpleQueue()
        self._wire = wire
        self._channel = channel
        call = channel.stream_stream(
            SESSION, request_serializer=bytes, response_deserializer=wire.pb.GatewayFrame.FromString
        )
        self._call = call(iter(self._outgoing.get, _HALF_CLOSE), compression=compression)

    def send(self, message: bytes) -> None:
        self._outgoing.put(message)

    def half_close(self) -> None:
        self._outgoing.put(_HALF_CLOSE)

    def cancel(self) -> None:
        """RST_STREAM on the wire; the connection stays."""
        self._call.cancel()

    def abandon(self) -> None:
        self._call.cancel()
        self._outgoing.put(_HALF_CLOSE)
        self._channel.close()

    def tunnel(self, frames):
        """A `Tunnel` stream beside the session: sends what `frames` gives as it is taken; gives what comes."""
        call = self._channel.stream_stream(
            TUNNEL,
            request_serializer=lambda frame: frame.SerializeToString(),
            response_deserializer=self._wire.pb.TunnelFrame.FromString,
        )
        return call(frames)

    def read(self, take) -> End:
        """Gives each frame to `take`, then how the stream ended."""
        try:
            for frame in self._call:
                take(frame)
        except grpc.RpcError:
            pass  # The status below says it.
        self._outgoing.put(_HALF_CLOSE)
        trailers = {key: value for key, value in (self._call.trailing_metadata() or ())}
        return End(self._call.code(), self._call.details() or "", trailers)


class WebSocket:
    """A session over a WebSocket of the `websockets` library: one frame a binary message."""

    def __init__(self, wire: Wire, node, keepalive_s):
        self._wire = wire
        self._node = node
        self._keepalive_s = keepalive_s
        self._outgoing = queue.SimpleQueue()
        self._socket = None
        self._canceled = False
        self._over = threading.Event()

    def send(self, message) -> None:
        """Bytes are a binary message, text is a text message."""
        self._outgoing.put(message)

    def half_close(self) -> None:
        self._outgoing.put(_HALF_CLOSE)

    def cancel(self) -> None:
        """The connection is cut: over WebSocket it carries nothing else."""
        self._canceled = True
        self._cut()

    def abandon(self) -> None:
        self._cut()
        self._outgoing.put(_HALF_CLOSE)

    def read(self, take) -> End:
        try:
            self._socket = self._dial("session", self._keepalive_s)
        except InvalidStatus as refused:
            response = refused.response
            return end_of_headers(response.status_code, response.headers, response.body or b"")
        except Exception as error:
            return End(grpc.StatusCode.UNAVAILABLE, f"no connection: {error!r}")
        threading.Thread(target=self._write, name="session-writer", daemon=True).start()
        try:
            while True:
                take(self._wire.pb.GatewayFrame.FromString(self._socket.recv()))
        except ConnectionClosed as closed:
            return self._end(closed)
        except Exception as error:
            return End(grpc.StatusCode.UNAVAILABLE, f"the connection broke: {error!r}")
        finally:
            self._outgoing.put(_HALF_CLOSE)

    def tunnel(self, frames):
        """A tunnel over a connection of its own. Without pings: while its caller reads nothing, nobody answers them."""
        socket = self._dial("tunnel", None)

        def send():
            with contextlib.suppress(ConnectionClosed, OSError):
                for frame in frames:
                    socket.send(frame.SerializeToString())
                socket.close()

        def received():
            with contextlib.suppress(ConnectionClosed):
                while True:
                    yield self._wire.pb.TunnelFrame.FromString(socket.recv())

        threading.Thread(target=send, name="tunnel-writer", daemon=True).start()
        return received()

    def _dial(self, what: str, ping_interval):
        return connect(
            f"wss://{self._node.endpoint}/gateway.v1/{what}",
            ssl=tls_context(self._node),
            server_hostname=self._node.server_name,
            subprotocols=["gateway.v1"],
            compression=None,
            proxy=None,
            max_size=None,
            ping_interval=ping_interval,
            open_timeout=PATIENCE_S,
            close_timeout=PATIENCE_S,
        )

    def _write(self) -> None:
        with contextlib.suppress(ConnectionClosed, OSError):
            while (message := self._outgoing.get()) is not _HALF_CLOSE:
                self._socket.send(message)
            self._socket.close()

    def _cut(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Below TLS: nothing is said, as when a machine dies.
                self._socket.socket.shutdown(2)

    def _end(self, closed: ConnectionClosed) -> End:
        if self._canceled:
            return End(grpc.StatusCode.CANCELLED, "canceled by the client")
        if closed.rcvd is None:
            return End(grpc.StatusCode.UNAVAILABLE, "the connection broke without a close frame")
        code = status_of(closed.rcvd.code - CLOSE_BASE)
        if code is None:
            return End(grpc.StatusCode.UNKNOWN, f"closed with code {closed.rcvd.code}: {closed.rcvd.reason}")
        sentence, hint, pushback = closed.rcvd.reason.partition(f" [{PUSHBACK}=")
        trailers = {PUSHBACK: pushback.removesuffix("]")} if hint else {}
        return End(code, sentence, trailers)


def post(node, name: str, request: bytes) -> bytes:
    """A unary call over HTTP/1.1; gives the answer's message."""
    host, _, port = node.endpoint.rpartition(":")
    context = tls_context(node)
    connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=PATIENCE_S)
    if node.server_name:
        # The library has no other way to expect another name than the host's.
        wrap = context.wrap_socket
        context.wrap_socket = lambda sock, **more: wrap(sock, **{**more, "server_hostname": node.server_name})
    with contextlib.closing(connection):
        connection.request(
            "POST", f"/gateway.v1/{name}", body=request, headers={"content-type": "application/x-protobuf"}
        )
        answer = connection.getresponse()
        body = answer.read()
        end = end_of_headers(answer.status, answer.headers, body)
        if end.code != grpc.StatusCode.OK:
            raise Refused(end)
        return body


def end_of_headers(status: int, headers, body: bytes) -> End:
    """What an answer of HTTP/1.1 says: its gRPC status, or what HTTP's own says."""
    trailers = {key.lower(): value for key, value in headers.items()}
    text = body.decode(errors="replace").strip()
    code = trailers.get("grpc-status", "")
    code = status_of(int(code)) if code.isdecimal() else None
    return End(code or grpc.StatusCode.UNKNOWN, text if code else f"HTTP {status}: {text}", trailers)


def status_of(number: int):
    return next((code for code in grpc.StatusCode if code.value[0] == number), None)


def tls_context(node) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=node.ca.decode())
    context.set_alpn_protocols(["http/1.1"])
    if node.identity:
        # The library takes them from files alone.
        with tempfile.TemporaryDirectory(prefix="gateway-conformance-") as folder:
            certificate, key = Path(folder, "node.crt"), Path(folder, "node.key")
            certificate.write_bytes(node.identity.certificate)
            key.touch(mode=0o600)
            key.write_bytes(node.identity.key)
            context.load_cert_chain(certificate, key)
    return context
