"""Stories of a node's journal: events are acked with the cursor, and what was not acked goes again.

Each story has a journal of its own, so that none finds another's cursor.
"""

import uuid

from story import World, check, story


def journal() -> str:
    return f"conformance-{uuid.uuid4().hex[:8]}"


def batch(world: World, ref: int, journal_id: str, seqs, kind="conformance.event"):
    """An `EventBatch` of that journal; each body names its seq."""
    pb = world.wire.pb
    events = [pb.Event(seq=seq, kind=kind, body=f"body {seq}".encode()) for seq in seqs]
    return pb.NodeFrame(
        event_batch=pb.EventBatch(ref=ref, journal_id=journal_id, boot_id=world.node.boot_id, events=events)
    )


def must_hold(world: World, journal_id: str, last: int) -> None:
    """The database has the journal up to that seq, each event once and as it was sent."""
    rows = world.database.events(world.node.identity.node_id, journal_id)
    expected = [(seq, f"body {seq}".encode()) for seq in range(1, last + 1)]
    check(rows == expected, f"the database has {rows}; expected seqs 1 to {last}")


@story
def events_are_acked_with_the_cursor(world: World):
    """Events are acked when they are stored, up to a gap, and stored once whatever is sent again."""
    name = journal()
    with world.node.session() as session:
        for ref, seqs, cursor in [
            (1, [1, 2, 3], 3),
            (2, [2, 3, 4], 4),  # two of them again
            (3, [6, 7], 4),  # behind a gap
            (4, [5, 6, 8], 6),  # up to one
        ]:
            session.send(batch(world, ref, name, seqs))
            ack = session.answer(ref, "event_ack")
            check(ack.journal_id == name, f"the ack names the journal {ack.journal_id!r}; expected {name!r}")
            check(ack.acked_seq == cursor, f"{seqs} was acked up to {ack.acked_seq}; expected {cursor}")
            must_hold(world, name, cursor)
        session.send(batch(world, 5, name, [7], kind="no\0kind"))
        rejected = session.answer(5, "rejected")
        check("event 7" in rejected.message, f"the sentence does not name the event: {rejected.message!r}")
        check(session.answer(5, "event_ack").acked_seq == 7, "a rejected event must not hold up the cursor")


@story
def unacked_events_are_sent_again_after_a_reconnect(world: World):
    """Welcome tells the cursor of the journal that Hello names; the node goes on from there."""
    name = journal()
    with world.node.session() as session:
        session.send(batch(world, 1, name, range(1, 6)))
        session.answer(1, "event_ack")
        # The ack of these is never read: the connection is gone first.
        session.send(batch(world, 2, name, range(6, 9)))
        session.abandon()
    with world.node.open() as session:
        session.send(world.node.hello(journal_id=name, journal_last_seq=8))
        session.welcome = session.expect("welcome")
        told = session.welcome.journal_acked_seq
        check(session.welcome.journal_id == name, f"Welcome names the journal {session.welcome.journal_id!r}")
        check(told in (5, 8), f"Welcome tells the cursor {told}; expected 5, or 8 if the second batch arrived")
        session.send(batch(world, 3, name, range(6, 11)))
        ack = session.answer(3, "event_ack")
        check(ack.acked_seq == 10, f"acked up to {ack.acked_seq}; expected 10")
        must_hold(world, name, 10)
    with world.node.open() as session:
        session.send(world.node.hello(journal_id=journal()))
        session.welcome = session.expect("welcome")
        check(session.welcome.journal_acked_seq == 0, "a new journal begins a new cursor")
