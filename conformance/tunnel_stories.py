"""Stories of a tunnel: a caller of the control API on one side, a node with its session on the other.

Owns: what both do on stock clients. Over HTTP/2 the node's `Tunnel` stream is beside the session, on the same
connection; over WebSocket it has a connection of its own. Never: what goes over a tunnel.
"""

import itertools
import queue
import time

from caller import Caller
from story import World, check, story

# More than the connection of a session takes of calls that are not read.
STALLED = 4
FLOOD = 2048
PIECE = bytes(32 << 10)
PATIENCE_S = 20.0


@story
def a_tunnel_carries_bytes_and_the_exit_status(world: World):
    """A tunnel that a caller opens is offered on the session; bytes come as they were, the exit status last."""
    pb = world.wire.pb
    with world.node.session(features=["tunnels"]) as session:
        asked, said = opened(world, session, outgoing := queue.SimpleQueue())
        asked.put(pb.TunnelFrame(data=pb.TunnelData(data=b"hello")))
        check(next(session.tunnelled).data.data == b"hello", "the node got something else")
        outgoing.put(pb.TunnelFrame(data=pb.TunnelData(data=b"HELLO")))
        check(next(said).data.data == b"HELLO", "the caller got something else")
        asked.put(pb.TunnelFrame(half_close=pb.TunnelHalfClose()))
        check(next(session.tunnelled).WhichOneof("frame") == "half_close", "the node is not told of the half-close")
        outgoing.put(pb.TunnelFrame(exit=pb.TunnelExit(code=7)))
        check(next(said).exit.code == 7, "the exit status is another")
        outgoing.put(None)
        check(next(session.tunnelled, None) is None, "the node got more after its end")
        session.heartbeat(1)


@story
def tunnels_whose_caller_does_not_read_stall_alone(world: World):
    """A node whose tunnels are not read is held back, and its session goes on beside them as ever."""
    with world.node.session(features=["tunnels"]) as session:
        floods, calls = [Flood(world) for _ in range(STALLED)], []
        for flood in floods:
            _, said = opened(world, session, flood.first, iter(flood))
            flood.first.put(None)
            # The library ends a call that nobody holds.
            calls.append((said, session.tunnelled))
        deadline = time.monotonic() + PATIENCE_S
        before = None
        while (taken := [flood.taken for flood in floods]) != before or 0 in taken:
            check(time.monotonic() < deadline, f"the node is not held back: {taken}")
            before = taken
            time.sleep(1)
        check(max(taken) < FLOOD // 2, f"{taken} pieces were taken, though nobody reads them")
        for sequence in (1, 2, 3):
            session.heartbeat(sequence)
        # What waits is there when it is read.
        for said, _ in calls:
            got = b"".join(frame.data.data for frame in itertools.islice(said, 8))
            check(got == bytes(len(got)) and len(got) > 8, "other bytes came")
            said.cancel()
        session.heartbeat(4)


class Flood:
    """What a node sends without end: what `first` is given, and then data, counted as it is taken."""

    def __init__(self, world: World):
        self._wire = world.wire
        self.first = queue.SimpleQueue()
        self.taken = 0

    def __iter__(self):
        yield from iter(self.first.get, None)
        for self.taken in range(FLOOD):
            yield self._wire.pb.TunnelFrame(data=self._wire.pb.TunnelData(data=PIECE))


def opened(world: World, session, outgoing: queue.SimpleQueue, frames=None):
    """Opens a tunnel and joins it; gives where the caller's frames go in, and the call with what it gets."""
    caller: Caller = world.needs("caller")
    asked = queue.SimpleQueue()
    said = caller.open(world.node.identity.node_id, "conformance", asked)
    offer = session.expect("open_tunnel")
    check(offer.kind == "conformance", f"the offer is of another kind: {offer}")
    pb = world.wire.pb
    outgoing.put(pb.TunnelFrame(hello=pb.TunnelHello(tunnel_id=offer.tunnel_id, ticket=offer.ticket)))
    session.join(frames or iter(outgoing.get, None))
    return asked, said
