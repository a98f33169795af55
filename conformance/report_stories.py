"""Stories of statuses and of reports: what is told is stored once, acts once, and a hook that fails is published.

They use the hooks that are built in: the status `gpu.xid`, and the event `allocation.bound`.
"""

import uuid

from story import World, check, story


def unique(word: str) -> str:
    return f"{word}-{uuid.uuid4().hex[:8]}"


def status(world: World, ref: int, id: str, kind="conformance.status", body=b""):
    pb = world.wire.pb
    return pb.NodeFrame(status=pb.Status(ref=ref, id=id, kind=kind, body=body))


def events(world: World, ref: int, journal: str, *kinds_bodies, first=1, attested=None):
    pb = world.wire.pb
    rows = [
        pb.Event(seq=seq, kind=kind, body=body, attested=attested)
        for seq, (kind, body) in enumerate(kinds_bodies, start=first)
    ]
    batch = pb.EventBatch(ref=ref, journal_id=journal, boot_id=world.node.boot_id, events=rows)
    return pb.NodeFrame(event_batch=batch)


@story
def a_status_is_acked_once_it_is_stored_and_acked_again_when_resent(world: World):
    """A status is acked without a state; the same id again is acked, stored once, and acts once."""
    gpu, id = unique("gpu"), unique("status")
    body = f'{{"gpu": "{gpu}", "xid": 79}}'.encode()
    node_id = world.node.identity.node_id
    with world.node.session() as session:
        for ref in (1, 2):
            session.send(status(world, ref, id, "gpu.xid", body))
            ack = session.answer(ref, "ack")
            check(ack.state == 0, f"the ack of a status has the state {ack.state}; a status has none")
            stored = world.database.statuses(node_id, id)
            check(stored == [("gpu.xid", body)], f"the database has {stored}")
            seen = world.database.xids(node_id, gpu)
            check(seen == [(79, 1)], f"the handler has counted {seen}; expected XID 79 once")
    with world.node.session() as session:
        session.send(status(world, 3, id, "gpu.xid", body))
        session.answer(3, "ack")
    check(world.database.xids(node_id, gpu) == [(79, 1)], "a resend in another session must not act again")


@story
def a_status_that_can_not_be_stored_is_rejected_alone(world: World):
    """A status without an id or a kind is Rejected; the frames beside it are stored."""
    with world.node.session() as session:
        for ref, frame in [(1, status(world, 1, "")), (2, status(world, 2, unique("status"), kind=""))]:
            session.send(frame)
            rejected = session.answer(ref, "rejected")
            check("is empty" in rejected.message, f"the sentence does not say what is wrong: {rejected.message!r}")
        session.send(status(world, 3, unique("status")))
        session.answer(3, "ack")


@story
def a_status_handler_that_fails_is_published_and_the_status_is_acked(world: World):
    """A body that its handler can't read: stored and acked all the same, and published as node.report-failed."""
    id = unique("status")
    with world.node.session() as session:
        session.send(status(world, 1, id, "gpu.xid", b"no json"))
        session.answer(1, "ack")
    failures = world.database.failures(world.node.identity.node_id, "status_id", id)
    check(len(failures) == 1, f"published: {failures}; expected one failure")
    check(failures[0]["hook"] == "on_gpu_xid" and failures[0]["sqlstate"] == "22P02", f"published: {failures[0]}")


@story
def a_report_whose_hook_fails_is_published_and_the_stream_goes_on(world: World):
    """The event is stored, its failure is published once, and the events behind it are acked."""
    journal = unique("conformance")
    batch = (("conformance.event", b"1"), ("allocation.bound", b"no json"), ("conformance.event", b"3"))
    with world.node.session() as session:
        for ref in (1, 2):
            session.send(events(world, ref, journal, *batch))
            ack = session.answer(ref, "event_ack")
            check(ack.acked_seq == 3, f"acked up to {ack.acked_seq}; expected 3")
    rows = world.database.events(world.node.identity.node_id, journal)
    check(rows == [(1, b"1"), (2, b"no json"), (3, b"3")], f"the database has {rows}")
    failures = world.database.failures(world.node.identity.node_id, "journal_id", journal)
    check([failure["seq"] for failure in failures] == [2], f"published: {failures}; expected seq 2 once")


@story
def a_signed_envelope_is_stored_as_received(world: World):
    """Neither checked nor changed: any bytes of an envelope are stored as they came."""
    journal, body = unique("conformance"), bytes(range(256))
    attested = world.wire.pb.SignedEnvelope(body=body, kid="key-1", signature=b"\x00\xff no signature at all")
    with world.node.session() as session:
        session.send(events(world, 1, journal, ("conformance.event", b"b"), attested=attested))
        session.answer(1, "event_ack")
    stored = world.database.envelope(world.node.identity.node_id, journal, 1)
    expected = (attested.body, attested.kid, attested.signature)
    check(stored == expected, f"the database has {stored}; expected {expected}")
