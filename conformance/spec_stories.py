"""Stories of specs: desired state is pushed when it changes and at Hello, and each outcome is stored.

Each story has specs of its own. What a story set is answered by it, so that no later one is sent it.
"""

import time
import uuid

from story import World, check, story


def name_of(word: str) -> str:
    return f"conformance-{word}-{uuid.uuid4().hex[:8]}"


def expect_spec(session, name: str):
    return session.expect("spec", lambda spec: spec.name == name)


def was_sent(session, name: str) -> bool:
    return any(frame.WhichOneof("frame") == "spec" and frame.spec.name == name for frame in session.received)


def applied(world: World, ref: int, spec, error=""):
    """What the node says of a spec that it was sent."""
    pb = world.wire.pb
    return pb.NodeFrame(
        spec_applied=pb.SpecApplied(ref=ref, name=spec.name, generation=spec.generation, ok=not error, error=error)
    )


@story
def spec_is_pushed_when_it_changes(world: World):
    """A spec that changes while its node is connected is there within a second, and its outcome is stored."""
    name, node_id = name_of("change"), world.node.identity.node_id
    with world.node.session() as session:
        for generation, body in [(1, b"one"), (2, b"two")]:
            set_at = time.monotonic()
            stored = world.database.set_spec(node_id, name, body)
            check(stored == generation, f"set_spec gives the generation {stored}; expected {generation}")
            spec = expect_spec(session, name)
            took = time.monotonic() - set_at
            check((spec.generation, spec.body) == (generation, body), f"the node was sent {spec}")
            check(took < 1.0, f"it took {took:.2f} s")
            session.send(applied(world, generation, spec))
            session.answer(generation, "ack")
            told = world.database.spec(node_id, name)
            check(told == (generation, generation, "applied", None), f"spec_status says {told}")
        check(world.database.set_spec(node_id, name, b"two") == 2, "the same body keeps its generation")
        # What is pushed because of it would come before this: the pokes of one gateway are heard in order.
        other = name_of("after")
        world.database.set_spec(node_id, other, b"")
        session.send(applied(world, 3, expect_spec(session, other)))
        session.answer(3, "ack")
        sent = [frame.spec.generation for frame in session.received
                if frame.WhichOneof("frame") == "spec" and frame.spec.name == name]
        check(sent == [1, 2], f"the node was sent the generations {sent}; expected 1 and 2, each once")


@story
def spec_is_pushed_at_hello_unless_the_node_has_it(world: World):
    """After Welcome come the specs that Hello does not list at their generation, and no others."""
    pb = world.wire.pb
    node_id = world.node.identity.node_id
    old, new, has = name_of("old"), name_of("new"), name_of("has")
    for name, bodies in [(old, 2), (new, 1), (has, 2)]:
        for body in range(bodies):
            world.database.set_spec(node_id, name, f"{body}".encode())
    with world.node.open() as session:
        listed = [pb.SpecGeneration(name=old, generation=1), pb.SpecGeneration(name=has, generation=2)]
        session.send(world.node.hello(specs=listed))
        session.welcome = session.expect("welcome")
        for ref, (name, generation) in enumerate([(new, 1), (old, 2)], 1):
            spec = expect_spec(session, name)
            check(spec.generation == generation, f"{name} was sent at {spec.generation}; expected {generation}")
            session.send(applied(world, ref, spec))
            session.answer(ref, "ack")
        check(session.received[0].WhichOneof("frame") == "welcome", "Welcome comes first")
        check(not was_sent(session, has), "a spec that the node has was sent to it")
        # The node says again what it said before: it may not know that it was stored.
        session.send(applied(world, 3, pb.Spec(name=has, generation=2)))
        session.answer(3, "ack")
    with world.node.open() as session:
        listed = [pb.SpecGeneration(name=name, generation=2) for name in (old, has)]
        session.send(world.node.hello(specs=[*listed, pb.SpecGeneration(name=new, generation=1)]))
        session.welcome = session.expect("welcome")
        session.heartbeat(1)
        marker = name_of("marker")
        world.database.set_spec(node_id, marker, b"")
        session.send(applied(world, 4, expect_spec(session, marker)))
        session.answer(4, "ack")
        for name in (old, new, has):
            check(not was_sent(session, name), f"{name} was sent, though the node has it")


@story
def failed_spec_is_visible_and_not_pushed_again_until_it_changes(world: World):
    """A failure is an answer: it stands in spec_status with its reason, and a change is pushed as ever."""
    name, node_id = name_of("fails"), world.node.identity.node_id
    with world.node.session() as session:
        world.database.set_spec(node_id, name, b"bad")
        session.send(applied(world, 1, expect_spec(session, name), error="no such device"))
        session.answer(1, "ack")
        told = world.database.spec(node_id, name)
        check(told == (1, 1, "failed: no such device", None), f"spec_status says {told}")
        world.database.set_spec(node_id, name, b"good")
        spec = expect_spec(session, name)
        check(spec.generation == 2, f"generation {spec.generation} was sent; expected 2")
        session.send(applied(world, 2, spec))
        session.answer(2, "ack")
        # An outcome of an older generation that comes late is acked and changes nothing.
        session.send(applied(world, 3, world.wire.pb.Spec(name=name, generation=1), error="late"))
        session.answer(3, "ack")
        told = world.database.spec(node_id, name)
        check(told == (2, 2, "applied", None), f"spec_status says {told}")


@story
def outcome_of_an_unknown_spec_is_rejected_alone(world: World):
    """What is said of a spec that the node was never given is rejected, and the stream goes on."""
    pb = world.wire.pb
    name, node_id = name_of("known"), world.node.identity.node_id
    with world.node.session() as session:
        world.database.set_spec(node_id, name, b"")
        spec = expect_spec(session, name)
        session.send(applied(world, 1, pb.Spec(name=name_of("unknown"), generation=1)))
        session.send(applied(world, 2, pb.Spec(name=name, generation=7)))
        session.send(applied(world, 3, spec))
        for ref in (1, 2):
            rejected = session.answer(ref, "rejected")
            check(rejected.code == pb.REJECT_CODE_UNKNOWN_SPEC, f"ref {ref} was rejected with {rejected}")
        session.answer(3, "ack")
        session.heartbeat(1)


@story
def set_spec_refuses_what_can_not_be_delivered(world: World):
    """A spec that could never be delivered is refused when it is set, with what to do."""
    node_id = world.node.identity.node_id
    for arguments, word in [
        (("spiffe://nowhere", "dns", b""), "not registered"),
        ((node_id, "", b""), "no spec name"),
        ((node_id, "dns", b"x" * (512 * 1024 + 1)), "524288"),
    ]:
        told = world.database.refusal_of("SELECT set_spec(%s, %s, %s)", arguments)
        check(word in told, f"the refusal says {told!r}; expected {word!r}")
