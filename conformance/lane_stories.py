"""Stories of lanes, credit, time windows and admission: what a gateway must *not* send, and when.

That a command was not sent is shown by a witness: a later command on an open lane arrives, so the
gateway has looked, and the one in question was not among what it sent.
"""

import time

import grpc

from node import StoryFailed
from story import World, check, story


@story
def lane_credit(world: World):
    """With capacity 1 the second command comes only when the first is terminal."""
    lane, open_lane = world.lane(), world.lane("open")
    with world.node.session({lane: 1, open_lane: 16}) as session:
        first, second = world.enqueue(lane), world.enqueue(lane)
        session.expect_command(first)
        for state in ("ACCEPTED", "RUNNING"):
            session.report_stored(first, state)
            _witness(world, session, open_lane)
            check(not session.was_sent(second), f"the second came while the first was {state}")
        check(world.database.state(second) == "pending", "the second is not pending")
        session.report_stored(first, "SUCCEEDED")
        session.expect_command(second)
        session.report_stored(second, "SUCCEEDED")


@story
def a_blocked_lane_blocks_no_other(world: World):
    """1,000 commands that wait on one lane hold up neither another lane nor its order."""
    blocked, free = world.lane("blocked"), world.lane("free")
    with world.node.session({blocked: 1, free: 1}) as session:
        waiting = world.database.enqueue_many(world.node.identity.node_id, blocked, 1000)
        session.expect_command(waiting[0])
        for _ in range(3):
            _witness(world, session, free)
        check(not session.was_sent(waiting[1]), "a command came over the lane's capacity")
        world.database.cancel(*waiting[1:])
        session.report_stored(waiting[0], "SUCCEEDED")


@story
def credit_frame_opens_the_lane(world: World):
    """A Credit frame with a larger capacity lets the next command come."""
    pb = world.wire.pb
    lane = world.lane()
    with world.node.session({lane: 1}) as session:
        first, second = world.enqueue(lane), world.enqueue(lane)
        session.expect_command(first)
        session.send(pb.NodeFrame(credit=pb.Credit(lane=lane, capacity=2)))
        session.expect_command(second)
        session.report_stored(first, "SUCCEEDED")
        session.report_stored(second, "SUCCEEDED")


@story
def a_lane_of_capacity_zero_gets_nothing(world: World):
    """A lane may be declared closed; a later Credit opens it."""
    pb = world.wire.pb
    lane, open_lane = world.lane(), world.lane("open")
    with world.node.session({lane: 0, open_lane: 1}) as session:
        id = world.enqueue(lane)
        _witness(world, session, open_lane)
        check(not session.was_sent(id), "a command came on a lane of capacity 0")
        session.send(pb.NodeFrame(credit=pb.Credit(lane=lane, capacity=1)))
        session.expect_command(id)
        session.report_stored(id, "SUCCEEDED")


@story
def lane_not_declared(world: World):
    """A command for a lane that the node did not declare stays pending, until it does."""
    lane, open_lane = world.lane("undeclared"), world.lane("open")
    with world.node.session({open_lane: 1}) as session:
        id = world.enqueue(lane)
        _witness(world, session, open_lane)
        check(not session.was_sent(id), "a command came on a lane that was not declared")
        row = world.database.status(id)
        check(row["state"] == "pending", f"it is {row['state']}; expected pending")
        check("lane" in row["waits_for"], f"it is said to wait because {row['waits_for']!r}; expected its lane")
    with world.node.session({lane: 1}) as session:
        session.expect_command(id)
        session.report_stored(id, "SUCCEEDED")


@story
def not_after_is_sent_along(world: World):
    """A command with a time limit carries it, in milliseconds of the server's clock."""
    lane = world.lane()
    with world.node.session({lane: 1}) as session:
        id = world.enqueue(lane, not_after=world.database.clock_plus(600))
        command = session.expect_command(id)
        ahead_ms = command.not_after_unix_ms - session.welcome.server_unix_ms
        check(500_000 < ahead_ms < 700_000, f"not_after is {ahead_ms} ms ahead of Welcome; enqueued 600 s ahead")
        session.report_stored(id, "SUCCEEDED")


@story
def not_before_delays(world: World):
    """A delayed command comes when it is due, and blocks nothing meanwhile."""
    lane = world.lane()
    with world.node.session({lane: 1}) as session:
        due = world.database.clock_plus(1.5)
        delayed = world.enqueue(lane, not_before=due)
        _witness(world, session, lane)
        check(not session.was_sent(delayed), "a command was sent before its not_before")
        session.expect_command(delayed)
        check(world.database.clock_plus(0) >= due, "a command was sent before its not_before")
        session.report_stored(delayed, "SUCCEEDED")


@story
def expired_is_never_sent(world: World):
    """A command past its not_after is not sent, and blocks nothing behind it."""
    lane = world.lane()
    with world.node.session({lane: 1}) as session:
        first = world.enqueue(lane)
        session.expect_command(first)
        late = world.enqueue(lane, not_after=world.database.clock_plus(0.5))
        behind = world.enqueue(lane)
        world.database.await_not_after(late)
        session.report_stored(first, "SUCCEEDED")
        session.expect_command(behind)
        session.report_stored(behind, "SUCCEEDED")
        check(not session.was_sent(late), "a command was sent after its not_after")
        state = world.database.state(late)
        check(state in ("pending", "expired"), f"the expired command is {state}")


@story
def pushback(world: World):
    """Refused opens say when to come back, and who keeps to it gets in."""
    node = world.needs("small_bucket")
    refused = None
    for _ in range(1000):
        with node.open() as session:
            session.send(node.hello())
            try:
                session.expect("welcome")
            except StoryFailed:
                refused = session.ended()
                break
    check(refused is not None, "1,000 sessions were opened and none was refused: the bucket is not small")
    check(refused.code == grpc.StatusCode.RESOURCE_EXHAUSTED, f"refused with {refused}")
    hint = refused.trailers.get("grpc-retry-pushback-ms")
    check(hint is not None, f"no grpc-retry-pushback-ms in the trailers {refused.trailers}")
    check(hint.isdecimal() and int(hint) > 0, f"grpc-retry-pushback-ms is {hint!r}; expected whole milliseconds")
    time.sleep(int(hint) / 1000)  # What is tested is this very delay.
    with node.session() as session:
        session.heartbeat(1)


def _witness(world: World, session, lane: str) -> None:
    """Runs a command through an open lane: the gateway has looked since."""
    id = world.enqueue(lane)
    session.expect_command(id)
    session.report_stored(id, "SUCCEEDED")
