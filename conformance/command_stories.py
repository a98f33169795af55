"""Stories of a command's life: enqueued in SQL, run by a node, awaited in SQL.

A node may resend whatever was not acked; these stories resend on purpose.
"""

import uuid

from node import StoryFailed
from story import World, check, story


@story
def command_roundtrip(world: World):
    """SQL enqueues, the node gets it, reports accepted and succeeded, SQL has the result."""
    lane = world.lane()
    payload = bytes(range(256))
    with world.node.session({lane: 1}) as session:
        id = world.enqueue(lane, payload=payload, kind="conformance.echo")
        command = session.expect_command(id)
        check(command.payload == payload, "the payload is not what was enqueued")
        check(command.kind == "conformance.echo" and command.lane == lane, f"kind and lane: {command}")
        check(command.attempt == 1, f"attempt is {command.attempt}; expected 1")
        check(command.seq > 0, "seq is 0")
        check(command.not_after_unix_ms == 0, f"not_after is {command.not_after_unix_ms}; expected none")
        check(command.session_epoch == session.epoch, f"epoch {command.session_epoch} on session {session.epoch}")
        session.report_stored(id, "ACCEPTED")
        session.report_stored(id, "RUNNING", progress="half way")
        session.report_stored(id, "SUCCEEDED", result=b"\x00done\xff")
        row = world.database.await_terminal(id, "succeeded")
        check(bytes(row["result"]) == b"\x00done\xff", f"the stored result is {row['result']!r}")
        world.database.await_notified(id)


@story
def a_failure_keeps_its_error(world: World):
    """A failed command keeps the node's sentence."""
    lane = world.lane()
    with world.node.session({lane: 1}) as session:
        id = world.enqueue(lane)
        session.expect_command(id)
        session.report_stored(id, "FAILED", error="the disk is full")
        row = world.database.await_terminal(id, "failed")
        check(row["error"] == "the disk is full", f"the stored error is {row['error']!r}")


@story
def commands_of_a_lane_come_in_order(world: World):
    """The commands of a lane arrive in the order in which they were enqueued, with rising seq."""
    lane = world.lane()
    ids = [world.enqueue(lane) for _ in range(5)]
    with world.node.session({lane: 5}) as session:
        for id in ids:
            session.expect_command(id)
        got = [f.command for f in session.received if f.WhichOneof("frame") == "command" and f.command.lane == lane]
        check([c.command_id for c in got] == [id.bytes for id in ids], "the order is not that of the enqueues")
        seqs = [c.seq for c in got]
        check(seqs == sorted(set(seqs)), f"seqs: {seqs}")
        for id in ids:
            session.report_stored(id, "SUCCEEDED")


@story
def update_is_idempotent(world: World):
    """The same update again is acked again and changes nothing, on the same stream and on the next."""
    lane = world.lane()
    with world.node.session({lane: 1}) as session:
        id = world.enqueue(lane)
        session.expect_command(id)
        session.report_stored(id, "ACCEPTED")
        session.report_stored(id, "ACCEPTED")
        session.report_stored(id, "SUCCEEDED", result=b"first")
        session.report_stored(id, "SUCCEEDED", result=b"again")
        # A late report of an earlier state is acked with what is stored.
        session.report_stored(id, "RUNNING", stored="SUCCEEDED")
    with world.node.session({lane: 1}, known=[(id, 1, "SUCCEEDED")]) as session:
        session.report_stored(id, "SUCCEEDED", result=b"again")
        check(not session.was_sent(id), "a command that the node listed was sent again")
    row = world.database.await_terminal(id, "succeeded")
    check(bytes(row["result"]) == b"first", f"the stored result became {row['result']!r}")


@story
def conflicting_terminal_state_keeps_the_first(world: World):
    """A second, different terminal state is acked with the first, which stays."""
    lane = world.lane()
    with world.node.session({lane: 1}) as session:
        id = world.enqueue(lane)
        session.expect_command(id)
        session.report_stored(id, "SUCCEEDED", result=b"kept")
        session.report_stored(id, "FAILED", stored="SUCCEEDED", error="too late")
        row = world.database.await_terminal(id, "succeeded")
        check(bytes(row["result"]) == b"kept", f"the stored result became {row['result']!r}")


@story
def update_for_unknown_command_is_rejected(world: World):
    """An update for a command that nobody enqueued is rejected alone; the session goes on."""
    with world.node.session() as session:
        _must_be_rejected(world, session, session.report(uuid.uuid4(), "SUCCEEDED"), "UNKNOWN_COMMAND")
        session.heartbeat(1)


@story
def update_for_another_nodes_command_is_rejected(world: World):
    """A node can't report for another node: it is told what it is told of an unknown command."""
    other = world.needs("second_node")
    lane = world.lane()
    with world.node.session({lane: 1}) as session, other.session() as thief:
        id = world.enqueue(lane)
        session.expect_command(id)
        _must_be_rejected(world, thief, thief.report(id, "SUCCEEDED", result=b"stolen"), "UNKNOWN_COMMAND")
        session.report_stored(id, "SUCCEEDED", result=b"mine")
        row = world.database.await_terminal(id, "succeeded")
        check(bytes(row["result"]) == b"mine", f"the stored result is {row['result']!r}")


@story
def bad_update_fails_alone(world: World):
    """An update that can't be stored is rejected; the good ones around it are stored and acked."""
    lane = world.lane()
    with world.node.session({lane: 1}) as session:
        id = world.enqueue(lane)
        session.expect_command(id)
        first = session.report(id, "ACCEPTED")
        bad = [
            session.report(id, "PENDING"),
            session.report(id, "FAILED", error="NUL \0 in a text"),
            session.report(id, "SUCCEEDED", result=bytes(session.welcome.limits.result_bytes + 1)),
            session.report(id, "SUCCEEDED", attempt=0),
        ]
        last = session.report(id, "SUCCEEDED")
        session.answer(first, "ack")
        for ref in bad:
            _must_be_rejected(world, session, ref, "INVALID")
        session.answer(last, "ack")
        world.database.await_terminal(id, "succeeded")


@story
def replay_after_reconnect(world: World):
    """What was sent and is not listed in the next Hello is sent again; what is listed is not."""
    lane = world.lane()
    with world.node.session({lane: 2}) as first:
        lost, kept = world.enqueue(lane), world.enqueue(lane)
        first.expect_command(lost)
        first.expect_command(kept)
        first.cancel()
        first.ended()
    with world.node.session({lane: 2}, known=[(kept, 1, "ACCEPTED")]) as second:
        again = second.expect_command(lost)
        check(again.attempt == 1, f"the replay has attempt {again.attempt}; expected 1")
        check(again.session_epoch == second.epoch, f"the replay has epoch {again.session_epoch}, not {second.epoch}")
        check(second.received[0].WhichOneof("frame") == "welcome", "a replay came before Welcome")
        second.report_stored(lost, "SUCCEEDED")
        second.report_stored(kept, "SUCCEEDED")
        check(not second.was_sent(kept), "a command that the node listed was sent again")
        world.database.await_terminal(lost, "succeeded")
        world.database.await_terminal(kept, "succeeded")


@story
def replays_come_before_new_commands(world: World):
    """After Welcome come the replays by seq, and only then what was enqueued meanwhile."""
    lane, late_lane = world.lane(), world.lane("late")
    with world.node.session({lane: 3}) as first:
        ids = [world.enqueue(lane) for _ in range(3)]
        for id in ids:
            first.expect_command(id)
        first.cancel()
        first.ended()
    ids.append(world.enqueue(late_lane))
    with world.node.session({lane: 3, late_lane: 1}) as second:
        for id in ids:
            second.expect_command(id)
        got = [f.command.command_id for f in second.received if f.WhichOneof("frame") == "command"]
        mine = [id for id in got if id in {id.bytes for id in ids}]
        check(mine == [id.bytes for id in ids], "replays by seq, then new commands: that was not the order")
        for id in ids:
            second.report_stored(id, "SUCCEEDED")


@story
def refusal_that_may_be_tried_again(world: World):
    """A retryable refusal brings the command back as the next attempt; the old one is fenced."""
    lane = world.lane()
    pb = world.wire.pb
    with world.node.session({lane: 1}) as session:
        id = world.enqueue(lane)
        session.expect_command(id)
        refusal = pb.Refusal(reason=pb.REFUSAL_REASON_LANE_FULL, retryable=True)
        session.answer(session.report(id, "REFUSED", refusal=refusal), "ack")
        again = session.expect_command(id, timeout_s=60)
        check(again.attempt == 2, f"it came back as attempt {again.attempt}; expected 2")
        _must_be_rejected(world, session, session.report(id, "SUCCEEDED", attempt=1), "OLD_ATTEMPT")
        session.report_stored(id, "SUCCEEDED", attempt=2)
        world.database.await_terminal(id, "succeeded")


@story
def refusal_for_good(world: World):
    """A refusal that is not retryable ends the command as refused, and frees its credit."""
    lane = world.lane()
    pb = world.wire.pb
    with world.node.session({lane: 1}) as session:
        id, next_one = world.enqueue(lane), world.enqueue(lane)
        session.expect_command(id)
        refusal = pb.Refusal(reason=pb.REFUSAL_REASON_UNKNOWN_KIND, retryable=False)
        session.report_stored(id, "REFUSED", refusal=refusal)
        world.database.await_terminal(id, "refused")
        session.expect_command(next_one)
        session.report_stored(next_one, "SUCCEEDED")


@story
def cancel_pending(world: World):
    """A command canceled before it was sent is canceled at once, and never sent."""
    lane = world.lane()
    id = world.enqueue(lane)
    world.database.cancel(id)
    state = world.database.state(id)
    check(state == "canceled", f"it is {state}; expected canceled at once")
    with world.node.session({lane: 1}) as session:
        barrier = world.enqueue(lane)
        session.expect_command(barrier)
        check(not session.was_sent(id), "a canceled command was sent")
        session.report_stored(barrier, "SUCCEEDED")


@story
def cancel_running(world: World):
    """A running command is asked to stop; the node's answer is its end."""
    lane = world.lane()
    with world.node.session({lane: 1}) as session:
        id = world.enqueue(lane)
        session.expect_command(id)
        session.report_stored(id, "RUNNING")
        world.database.cancel(id)
        session.expect("cancel_command", lambda cancel: cancel.command_id == id.bytes)
        session.report_stored(id, "CANCELED")
        world.database.await_terminal(id, "canceled")


@story
def cancel_is_repeated_at_the_next_hello(world: World):
    """A cancel that the node may have missed is asked for again when it says Hello."""
    lane = world.lane()
    with world.node.session({lane: 1}) as session:
        id = world.enqueue(lane)
        session.expect_command(id)
        session.report_stored(id, "RUNNING")
    world.database.cancel(id)
    with world.node.session({lane: 1}, known=[(id, 1, "RUNNING")]) as session:
        session.expect("cancel_command", lambda cancel: cancel.command_id == id.bytes)
        # Success came first: the first terminal state stored wins over the wish to cancel.
        session.report_stored(id, "SUCCEEDED")
        world.database.await_terminal(id, "succeeded")


@story
def the_same_idempotency_key_is_the_same_command(world: World):
    """An enqueue that is repeated with its key gives the first command's id, and one command runs."""
    lane = world.lane()
    with world.node.session({lane: 2}) as session:
        id = world.enqueue(lane, idempotency_key=lane)
        again = world.enqueue(lane, idempotency_key=lane)
        check(again == id, f"the second enqueue gave {again}, the first {id}")
        session.expect_command(id)
        session.report_stored(id, "SUCCEEDED")
        after = world.enqueue(lane, idempotency_key=lane)
        check(after == id, "the key of a command that is done gave a new one")


@story
def a_rolled_back_enqueue_never_was(world: World):
    """A command exists if and only if its client's transaction commits."""
    lane = world.lane()
    with world.node.session({lane: 2}) as session:
        id = world.database.enqueue_and_roll_back(world.node.identity.node_id, lane)
        witness = world.enqueue(lane)
        session.expect_command(witness)
        session.report_stored(witness, "SUCCEEDED")
        check(not session.was_sent(id), "a command of a rolled-back transaction was sent")


@story
def enqueue_refuses_what_could_never_be_delivered(world: World):
    """An unknown node and a payload over the limit are refused in the client's own transaction."""
    statement = "SELECT enqueue_command(node_id => %s, kind => 'conformance', payload => %s, lane => 'x')"
    said = world.database.refusal_of(statement, ("spiffe://nowhere/node/none", b""))
    check("node" in said, f"the refusal of an unknown node does not name it: {said}")
    said = world.database.refusal_of(statement, (world.node.identity.node_id, bytes((512 << 10) + 1)))
    check("payload" in said or "bytes" in said, f"the refusal of a large payload does not say so: {said}")


def _must_be_rejected(world: World, session, ref: int, code: str) -> None:
    rejected = session.answer(ref, "rejected")
    if rejected.code != world.wire.reject_code(code):
        raise StoryFailed(f"rejected with {world.wire.pb.RejectCode.Name(rejected.code)}; expected {code}")
    check(bool(rejected.message), f"rejected with {code} and no sentence")
    check(not rejected.retryable, f"{code} is said to be retryable")
