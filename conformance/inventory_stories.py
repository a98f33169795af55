"""Stories of a node's inventory: sections are stored beside the durable frames, and asked for when they differ.

Each story has sections of its own names, which it removes in the end: a node may have a bounded number.
"""

import hashlib
import uuid
from contextlib import contextmanager

from story import World, check, story


@contextmanager
def sections(world: World, count: int):
    """That many names of sections that no other story has."""
    names = [f"conformance-{uuid.uuid4().hex[:8]}-{number}" for number in range(count)]
    try:
        yield names
    finally:
        for name in names:
            world.database.forget_section(world.node.identity.node_id, name)


def frame(world: World, ref: int, name: str, body: bytes, **more):
    """An `InventorySection`; `more` spoils it."""
    pb = world.wire.pb
    fields = {"ref": ref, "section": name, "hash": hashlib.sha256(body).digest(), "body": body, **more}
    return pb.NodeFrame(inventory_section=pb.InventorySection(**fields))


def listed(world: World, held: dict) -> list:
    """What a Hello or a heartbeat lists of these sections."""
    pb = world.wire.pb
    return [pb.SectionHash(section=name, hash=hashlib.sha256(body).digest()) for name, body in held.items()]


def must_hold(world: World, name: str, body) -> None:
    """The database has that body for the section, or none."""
    stored = world.database.section(world.node.identity.node_id, name)
    check(stored == body, f"the database has {stored!r} for {name}; expected {body!r}")


@story
def a_section_is_acked_when_it_is_stored(world: World):
    """A section is acked, replaced by a later one of its name, and acked again when nothing has changed."""
    with sections(world, 1) as [name], world.node.session() as session:
        for ref, body in [(1, b"first"), (2, b"second"), (3, b"second"), (4, b"")]:
            session.send(frame(world, ref, name, body))
            ack = session.answer(ref, "ack")
            check(ack.state == 0, f"the ack of a section has a command's state: {ack.state}")
            must_hold(world, name, body)
        for ref in range(5, 15):
            session.send(frame(world, ref, name, f"number {ref}".encode()))
        for ref in range(5, 15):
            session.answer(ref, "ack")
        must_hold(world, name, b"number 14")


@story
def a_corrupt_section_is_rejected_alone(world: World):
    """A section whose hash is not its body's is rejected with its ref; those around it are stored."""
    invalid = world.wire.reject_code("INVALID")
    with sections(world, 2) as [good, bad], world.node.session() as session:
        session.send(frame(world, 1, good, b"before"))
        session.send(frame(world, 2, bad, b"body", hash=hashlib.sha256(b"another").digest()))
        session.send(frame(world, 3, bad, b"body", hash=b"short"))
        session.send(frame(world, 4, "no\nname", b"body"))
        session.send(frame(world, 5, good, b"after"))
        for ref, word in [(2, "SHA-256"), (3, "32"), (4, "control character")]:
            rejected = session.answer(ref, "rejected")
            check(rejected.code == invalid and not rejected.retryable, f"ref {ref}: {rejected}")
            check(word in rejected.message, f"the sentence does not say {word!r}: {rejected.message!r}")
        session.answer(1, "ack")
        session.answer(5, "ack")
        must_hold(world, good, b"after")
        must_hold(world, bad, None)
        session.heartbeat(1)


@story
def what_differs_is_wanted_at_hello(world: World):
    """Welcome names the sections of Hello's list that are not stored so, and no others."""
    with sections(world, 3) as [same, other, absent]:
        with world.node.session() as session:
            check(list(session.welcome.inventory_wanted) == [], "nothing was listed, and something is wanted")
            session.send(frame(world, 1, same, b"same"))
            session.send(frame(world, 2, other, b"old"))
            session.answer(1, "ack")
            session.answer(2, "ack")
        held = {same: b"same", other: b"new", absent: b"new"}
        with world.node.open() as session:
            session.send(world.node.hello(inventory=listed(world, held)))
            session.welcome = session.expect("welcome")
            wanted = list(session.welcome.inventory_wanted)
            check(wanted == [other, absent], f"Welcome wants {wanted}; expected {[other, absent]}")


@story
def what_differs_is_wanted_after_a_heartbeat(world: World):
    """A heartbeat that shows another hash than the stored one is followed by InventoryWanted, until it is stored."""
    pb = world.wire.pb
    with sections(world, 2) as [first, second], world.node.session() as session:

        def beat(sequence: int, held: dict):
            session.send(pb.NodeFrame(heartbeat=pb.Heartbeat(sequence=sequence, inventory=listed(world, held))))
            session.expect("heartbeat_ack", lambda ack: ack.sequence == sequence)

        session.send(frame(world, 1, first, b"old"))
        session.answer(1, "ack")
        held = {first: b"new", second: b"new"}
        for sequence in [1, 2]:  # what is not sent is asked for again
            beat(sequence, held)
            wanted = list(session.expect("inventory_wanted").sections)
            check(wanted == [first, second], f"{wanted} are wanted; expected {[first, second]}")
        for ref, name in [(2, first), (3, second)]:
            session.send(frame(world, ref, name, held[name]))
            session.answer(ref, "ack")
        # The list is stored now; of one that differs in one section, that one alone is wanted.
        beat(3, {first: b"newer", second: b"new"})
        wanted = list(session.expect("inventory_wanted").sections)
        check(wanted == [first], f"{wanted} are wanted; expected {[first]}")


@story
def a_section_waits_for_no_update_and_no_update_for_it(world: World):
    """Sections are not awaited: neither a slow commit of an update holds one up, nor the other way round."""
    lane, node_id = world.lane(), world.node.identity.node_id
    with sections(world, 1) as [name], world.node.session({lane: 2}) as session:
        id = world.enqueue(lane)
        session.expect_command(id)
        with world.database.holding("SELECT FROM commands WHERE node_id = %s AND id = %s FOR UPDATE", (node_id, id)):
            update = session.report(id, "ACCEPTED")
            behind = session.report(id, "RUNNING")
            session.send(frame(world, 1001, name, b"first"))
            session.answer(1001, "ack")
            check(not session.was_answered(update), "the update was acked while its row was locked")
        session.answer(update, "ack")
        session.answer(behind, "ack")
        lock = "SELECT FROM inventory_sections WHERE node_id = %s AND section = %s FOR UPDATE"
        with world.database.holding(lock, (node_id, name)):
            session.send(frame(world, 1002, name, b"second"))
            session.report_stored(id, "SUCCEEDED")
            session.heartbeat(1)
            check(not session.was_answered(1002), "the section was acked while its row was locked")
        session.answer(1002, "ack")
        must_hold(world, name, b"second")
