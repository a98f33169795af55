"""A node as small as it can be, on stock clients and nothing else.

Owns: one session's frames in order of arrival, whatever carries them (`carriers.py`), and how it ended.
Never: a decision that a story should make, a retry, or a frame that was not asked for.

1. A session keeps every frame that it received, so a story can show that one was *not* sent.
2. `expect` waits for a frame or for the end of the stream, whichever comes first; no sleeps.
3. Retries of the library are off: a story sees each refusal itself.
"""

import threading
import time
from dataclasses import dataclass

import grpc

from carriers import End, Grpc, WebSocket
from wire import Wire

PATIENCE_S = 15.0
ANSWERS = ("ack", "event_ack", "rejected")


class StoryFailed(Exception):
    """What a story expected did not happen; the text says what was seen instead."""


@dataclass(frozen=True)
class Identity:
    """The certificate of a node, and the id that stands in it."""

    node_id: str
    certificate: bytes
    key: bytes


class Node:
    """One node: an identity, where its gateway is, and what carries its frames."""

    def __init__(
        self,
        wire: Wire,
        endpoint: str,
        ca: bytes,
        server_name: str | None,
        identity: Identity | None,
        transport: str = "h2",
    ):
        self.wire = wire
        self.endpoint = endpoint
        self.identity = identity
        self.ca = ca
        self.server_name = server_name
        self.transport = transport
        self.boot_id = f"boot-{time.time_ns()}"

    def channel(self, options=()) -> grpc.Channel:
        """A connection of its own: no story shares one by accident."""
        certificate, key = (self.identity.certificate, self.identity.key) if self.identity else (None, None)
        credentials = grpc.ssl_channel_credentials(self.ca, key, certificate)
        options = [
            *options,
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
        ]
        if self.server_name:
            options.append(("grpc.ssl_target_name_override", self.server_name))
        return grpc.secure_channel(self.endpoint, credentials, options)

    def open(self, compression=grpc.Compression.NoCompression, keepalive_s=None) -> "Session":
        """Opens a stream and sends nothing; with keep-alive it probes a silent connection so often."""
        if self.transport == "websocket":
            return Session(self.wire, WebSocket(self.wire, self, keepalive_s))
        options = [("grpc.keepalive_time_ms", int(keepalive_s * 1000))] if keepalive_s else []
        return Session(self.wire, Grpc(self.wire, self.channel(options), compression))

    def hello(self, lanes=None, known=(), **more):
        """A `Hello` frame: `lanes` maps name to capacity, `known` lists (id, attempt, state name)."""
        pb = self.wire.pb
        return pb.NodeFrame(
            hello=pb.Hello(
                protocol=1,
                boot_id=self.boot_id,
                machine="conformance",
                software_version="conformance/1",
                role="node",
                lanes=[pb.Lane(name=name, capacity=capacity) for name, capacity in (lanes or {}).items()],
                known_commands=[
                    pb.KnownCommand(command_id=id.bytes, attempt=attempt, state=self.wire.state(state))
                    for id, attempt, state in known
                ],
                **more,
            )
        )

    def session(self, lanes=None, known=(), keepalive_s=None, features=()) -> "Session":
        """Opens a stream, says Hello, and waits for `Welcome`."""
        session = self.open(keepalive_s=keepalive_s)
        try:
            session.send(self.hello(lanes, known, features=features))
            session.welcome = session.expect("welcome")
        except BaseException:
            session.abandon()
            raise
        return session


class Session:
    """One session."""

    def __init__(self, wire: Wire, carrier):
        self.wire = wire
        self.welcome = None
        self.tunnelled = None
        self.received = []
        self._unclaimed = []
        self._news = threading.Condition()
        self._end = None
        self._next_ref = 0
        self._carrier = carrier
        threading.Thread(target=self._read, name="session-reader", daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        if failure is None and self._end is None:
            self.half_close()
            self.ended()
        self.abandon()

    # -- what the node does

    def send(self, frame) -> None:
        """Sends one frame: a message, or bytes as they are."""
        self._carrier.send(frame if isinstance(frame, (bytes, str)) else frame.SerializeToString())

    def half_close(self) -> None:
        self._carrier.half_close()

    def cancel(self) -> None:
        """The client cancels the session."""
        self._carrier.cancel()

    def abandon(self) -> None:
        """Drops the session and its connection."""
        self._carrier.abandon()

    def join(self, frames) -> None:
        """Opens a `Tunnel` stream that sends `frames`; `tunnelled` is what comes on it."""
        self.tunnelled = self._carrier.tunnel(frames)

    def heartbeat(self, sequence: int):
        """Sends a heartbeat and waits for its answer."""
        self.send(self.wire.pb.NodeFrame(heartbeat=self.wire.pb.Heartbeat(sequence=sequence)))
        return self.expect("heartbeat_ack", lambda ack: ack.sequence == sequence)

    def report(self, command_id, state: str, attempt=1, **more) -> int:
        """Sends a `CommandUpdate`; gives its ref."""
        pb = self.wire.pb
        self._next_ref += 1
        update = pb.CommandUpdate(
            ref=self._next_ref, command_id=command_id.bytes, attempt=attempt, state=self.wire.state(state), **more
        )
        self.send(pb.NodeFrame(command_update=update))
        return self._next_ref

    def report_stored(self, command_id, state: str, attempt=1, stored=None, **more) -> None:
        """Sends a `CommandUpdate` and waits for the `Ack` with the state that must be stored then."""
        ref = self.report(command_id, state, attempt, **more)
        ack = self.answer(ref, "ack")
        got, want = self.wire.state_name(ack.state), stored or state
        if got != want:
            raise StoryFailed(f"{state} was acked with the stored state {got}; expected {want}")

    # -- what the node meets

    def expect(self, kind: str, matches=lambda _: True, timeout_s=PATIENCE_S):
        """The next frame of that kind that matches; frames that nobody asked for are kept."""
        deadline = time.monotonic() + timeout_s
        with self._news:
            while True:
                for index, frame in enumerate(self._unclaimed):
                    if frame.WhichOneof("frame") == kind and matches(getattr(frame, kind)):
                        del self._unclaimed[index]
                        return getattr(frame, kind)
                if self._end is not None:
                    raise StoryFailed(f"the stream ended with {self._end} while a {kind} was awaited")
                if not self._news.wait(deadline - time.monotonic()):
                    raise StoryFailed(f"no {kind} came within {timeout_s:g} s; {self._seen()}")

    def expect_command(self, command_id, timeout_s=PATIENCE_S):
        """The `Command` of that id."""
        return self.expect("command", lambda command: command.command_id == command_id.bytes, timeout_s)

    def answer(self, ref: int, kind: str):
        """The answer to a durable frame, which must be of that kind."""
        deadline = time.monotonic() + PATIENCE_S
        with self._news:
            while True:
                for index, frame in enumerate(self._unclaimed):
                    got = frame.WhichOneof("frame")
                    if got in ANSWERS and getattr(frame, got).ref == ref:
                        if kind not in (got, "any"):
                            raise StoryFailed(f"ref {ref} was answered by {_line(frame)}; expected {kind}")
                        del self._unclaimed[index]
                        return getattr(frame, got)
                if self._end is not None:
                    raise StoryFailed(f"the stream ended with {self._end} while the answer to ref {ref} was awaited")
                if not self._news.wait(deadline - time.monotonic()):
                    raise StoryFailed(f"ref {ref} got no answer within {PATIENCE_S:g} s; {self._seen()}")

    def was_sent(self, command_id) -> bool:
        """Whether the gateway has sent that command on this stream."""
        with self._news:
            return any(
                frame.WhichOneof("frame") == "command" and frame.command.command_id == command_id.bytes
                for frame in self.received
            )

    def was_answered(self, ref: int) -> bool:
        """Whether an answer to that durable frame has come."""
        with self._news:
            return any(
                frame.WhichOneof("frame") in ANSWERS and getattr(frame, frame.WhichOneof("frame")).ref == ref
                for frame in self.received
            )

    def ended(self, timeout_s=PATIENCE_S) -> End:
        """How the stream ended; waits for it."""
        with self._news:
            if not self._news.wait_for(lambda: self._end is not None, timeout_s):
                raise StoryFailed(f"the stream is still open after {timeout_s:g} s; {self._seen()}")
            return self._end

    def must_end(self, code: grpc.StatusCode, timeout_s=PATIENCE_S) -> End:
        """Waits for the end, which must carry that status and, where it is no success, a sentence."""
        end = self.ended(timeout_s)
        if end.code != code:
            raise StoryFailed(f"the stream ended with {end}; expected {code.name}")
        if code != grpc.StatusCode.OK and not end.details:
            raise StoryFailed(f"the stream ended with {code.name} and no sentence that says why")
        return end

    def must_stay_open(self, seconds: float) -> None:
        """Fails if the stream ends within that time."""
        with self._news:
            if self._news.wait_for(lambda: self._end is not None, seconds):
                raise StoryFailed(f"the stream ended with {self._end}")

    @property
    def epoch(self) -> int:
        return self.welcome.session_epoch

    # -- the reader's thread

    def _read(self) -> None:
        end = self._carrier.read(self._take)
        with self._news:
            self._end = end
            self._news.notify_all()

    def _take(self, frame) -> None:
        with self._news:
            self.received.append(frame)
            self._unclaimed.append(frame)
            self._news.notify_all()

    def _seen(self) -> str:
        if not self.received:
            return "nothing was received on this stream"
        return "received: " + ", ".join(_line(frame) for frame in self.received[-6:])


def _line(frame) -> str:
    text = str(frame).replace("\n", " ").strip()
    return text if len(text) <= 160 else text[:157] + "..."
