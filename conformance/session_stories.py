"""Stories of a session: how it opens, what it answers, how it ends.

Each docstring says what a gateway must do; `protocol.md` of any gateway that claims this protocol
says the same.
"""

import uuid

import grpc

from carriers import post
from story import World, check, only_over, story

Code = grpc.StatusCode


@story
def hello_welcome(world: World):
    """Hello is answered by Welcome, with an epoch, a heartbeat interval, the clock and the limits."""
    with world.node.session() as session:
        welcome = session.welcome
        check(session.received[0].WhichOneof("frame") == "welcome", "the first frame is not Welcome")
        check(welcome.protocol == 1, f"protocol is {welcome.protocol}; expected 1")
        check(welcome.session_epoch > 0, "the session epoch is 0")
        check(welcome.heartbeat_interval_ms > 0, "the heartbeat interval is 0")
        check(welcome.server_unix_ms > 1_600_000_000_000, f"server time is {welcome.server_unix_ms}")
        check(welcome.limits.frame_bytes > welcome.limits.result_bytes > 0, f"limits: {welcome.limits}")


@story
def epochs_rise(world: World):
    """Each session of a node has a higher epoch than the one before."""
    with world.node.session() as first:
        pass
    with world.node.session() as second:
        check(second.epoch > first.epoch, f"epoch {second.epoch} follows {first.epoch}")


@story
def heartbeat_ack(world: World):
    """Each heartbeat is answered with its sequence and the server's clock."""
    with world.node.session() as session:
        times = [session.heartbeat(sequence).server_unix_ms for sequence in (1, 2, 3)]
        check(times == sorted(times) and times[0] > 1_600_000_000_000, f"server times: {times}")


@story
def keepalive_pings_are_permitted(world: World):
    """The PINGs of a stock client with keep-alive, one a second, end nothing."""
    with world.node.session(keepalive_s=1) as session:
        # A PING goes out after each second in which nothing came; the bound is on the story's side.
        session.must_stay_open(seconds=3.5)
        session.heartbeat(1)


@story
def wrong_first_frame(world: World):
    """A stream whose first frame is not Hello ends INVALID_ARGUMENT."""
    pb = world.wire.pb
    with world.node.open() as session:
        session.send(pb.NodeFrame(heartbeat=pb.Heartbeat(sequence=1)))
        session.must_end(Code.INVALID_ARGUMENT)


@story
def silent_stream_is_ended(world: World):
    """A stream that stays silent is ended INVALID_ARGUMENT, within some ten seconds."""
    with world.node.open() as session:
        session.must_end(Code.INVALID_ARGUMENT, timeout_s=30)


@story
def second_hello(world: World):
    """A second Hello on a stream ends it INVALID_ARGUMENT."""
    with world.node.session() as session:
        session.send(world.node.hello())
        session.must_end(Code.INVALID_ARGUMENT)


@story
def garbage_bytes(world: World):
    """Bytes that are no protobuf message end the stream INVALID_ARGUMENT, and that stream alone."""
    with world.node.session() as healthy, world.node.open() as session:
        session.send(b"\xff\xff\xff\xff")
        session.must_end(Code.INVALID_ARGUMENT)
        healthy.heartbeat(1)


@story
def unknown_frame_is_ignored(world: World):
    """A frame with an arm that the gateway does not know is ignored: wire changes are additive."""
    with world.node.session() as session:
        session.send(b"\xa2\x38\x03new")  # field 900, length-delimited
        session.heartbeat(1)


@story
def durable_frames_are_answered(world: World):
    """Every durable frame gets an answer with its ref, if only that the gateway does not store it."""
    pb = world.wire.pb
    with world.node.open() as session:
        session.send(world.node.hello(journal_id="conformance"))
        session.welcome = session.expect("welcome")
        frames = {
            101: pb.NodeFrame(status=pb.Status(ref=101, id=str(uuid.uuid4()), kind="conformance")),
            102: pb.NodeFrame(spec_applied=pb.SpecApplied(ref=102, name="conformance", generation=1, ok=True)),
            103: pb.NodeFrame(inventory_section=pb.InventorySection(ref=103, section="conformance", body=b"{}")),
            104: pb.NodeFrame(
                event_batch=pb.EventBatch(
                    ref=104,
                    journal_id="conformance",
                    boot_id=world.node.boot_id,
                    events=[pb.Event(seq=session.welcome.journal_acked_seq + 1, kind="conformance")],
                )
            ),
        }
        for ref, frame in frames.items():
            session.send(frame)
            session.answer(ref, "any")


@story
def half_close_ends_ok(world: World):
    """A node that closes its half gets the answers in flight, then OK."""
    lane = world.lane()
    with world.node.session({lane: 1}) as session:
        id = world.enqueue(lane)
        session.expect_command(id)
        ref = session.report(id, "SUCCEEDED")
        session.half_close()
        session.answer(ref, "ack")
        session.must_end(Code.OK)


@story
def goodbye(world: World):
    """Goodbye ends the stream OK."""
    pb = world.wire.pb
    with world.node.session() as session:
        session.send(pb.NodeFrame(goodbye=pb.Goodbye(reason="conformance")))
        session.must_end(Code.OK)


@story
def cancel_of_the_stream(world: World):
    """A client that cancels the call is marked disconnected, and may open a new session at once."""
    with world.node.session() as session:
        session.cancel()
        session.must_end(Code.CANCELLED)
        world.database.await_disconnected(world.node.identity.node_id, session.epoch)
    with world.node.session() as after:
        check(after.epoch > session.epoch, f"epoch {after.epoch} follows {session.epoch}")
        after.heartbeat(1)


@story
def supersede(world: World):
    """A second session of a node ends the first one ABORTED, and only that."""
    with world.node.session() as old, world.node.session() as new:
        old.must_end(Code.ABORTED)
        check(new.epoch > old.epoch, f"epoch {new.epoch} superseded {old.epoch}")
        new.heartbeat(1)


@story
def two_nodes_do_not_touch_each_other(world: World):
    """The sessions of two nodes stand side by side."""
    with world.node.session() as one, world.needs("second_node").session() as other:
        one.heartbeat(1)
        other.heartbeat(1)


@story
def no_certificate(world: World):
    """A Session without a client certificate ends UNAUTHENTICATED."""
    with world.anonymous.open() as session:
        session.send(world.anonymous.hello())
        session.must_end(Code.UNAUTHENTICATED)


@story
def certificate_of_another_authority(world: World):
    """A certificate of another authority gets no session: a TLS alert, or UNAUTHENTICATED."""
    stranger = world.needs("stranger")
    with stranger.open() as session:
        session.send(stranger.hello())
        end = session.ended()
        check(
            end.code in (Code.UNAVAILABLE, Code.UNAUTHENTICATED),
            f"the stream ended with {end}; expected a failed handshake or UNAUTHENTICATED",
        )
        check(not session.received, "frames came before the certificate was refused")


@story
def oversized_frame(world: World):
    """A frame over the limit ends the stream INVALID_ARGUMENT, and that stream alone."""
    with world.node.session() as session:
        session.report(uuid.uuid4(), "RUNNING", result=bytes(session.welcome.limits.frame_bytes + 1))
        session.must_end(Code.INVALID_ARGUMENT)
    with world.node.session() as after:
        after.heartbeat(1)


@story
@only_over("h2")
def compressed_frame(world: World):
    """A compressed frame ends the stream UNIMPLEMENTED."""
    with world.node.open(grpc.Compression.Gzip) as session:
        hello = world.node.hello()
        # Long enough that the client finds compression worth it.
        hello.hello.software_version = "conformance " * 100
        session.send(hello)
        session.must_end(Code.UNIMPLEMENTED)


@story
@only_over("h2")
def unknown_call(world: World):
    """A call that does not exist ends UNIMPLEMENTED."""
    channel = world.node.channel()
    try:
        for path in ("/gateway.v1.NodeGateway/NoSuchCall", "/gateway.v1.NoSuchService/Session"):
            call = channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
            try:
                call(b"", timeout=10)
                check(False, f"{path} was answered OK")
            except grpc.RpcError as error:
                check(error.code() == Code.UNIMPLEMENTED, f"{path} ended {error.code().name}; expected UNIMPLEMENTED")
    finally:
        channel.close()


@story
@only_over("h2")
def health_is_serving(world: World):
    """The standard health service says SERVING, by Check and as the first answer of Watch."""
    health = world.wire.health
    channel = world.node.channel()
    try:
        stub = world.wire.health_grpc.HealthStub(channel)
        status = stub.Check(health.HealthCheckRequest(), timeout=10).status
        check(status == health.HealthCheckResponse.SERVING, f"Check says {status}")
        watch = stub.Watch(health.HealthCheckRequest(), timeout=10)
        status = next(watch).status
        watch.cancel()
        check(status == health.HealthCheckResponse.SERVING, f"Watch says {status}")
    finally:
        channel.close()


@story
@only_over("h2")
def health_of_an_unknown_service(world: World):
    """Of a service that is not there Check ends NOT_FOUND, and Watch says SERVICE_UNKNOWN and stays."""
    health = world.wire.health
    channel = world.anonymous.channel()
    try:
        stub = world.wire.health_grpc.HealthStub(channel)
        request = health.HealthCheckRequest(service="no.such.Service")
        try:
            stub.Check(request, timeout=10)
            check(False, "Check was answered OK")
        except grpc.RpcError as error:
            check(error.code() == Code.NOT_FOUND, f"Check ended {error.code().name}; expected NOT_FOUND")
        watch = stub.Watch(request, timeout=10)
        status = next(watch).status
        check(status == health.HealthCheckResponse.SERVICE_UNKNOWN, f"Watch says {status}")
        check(watch.is_active(), "Watch ended after its first answer")
        watch.cancel()
    finally:
        channel.close()


@story
@only_over("websocket")
def text_message(world: World):
    """A text message over WebSocket ends the session INVALID_ARGUMENT: frames are binary messages."""
    with world.node.session() as session:
        session.send("hello")
        session.must_end(Code.INVALID_ARGUMENT)


@story
@only_over("websocket")
def unknown_path(world: World):
    """A path that does not exist is answered 404, with a sentence."""
    try:
        post(world.node, "NoSuchCall", b"")
        check(False, "an unknown path was answered OK")
    except grpc.RpcError as error:
        check("HTTP 404: nothing is here" in error.details(), f"it was answered {error.details()}")
