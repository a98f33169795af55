"""The story of a gateway that sends its nodes away before it stops.

It ends the gateway that it is told about: it is the last of the stories that use that one.
"""

import grpc

from story import World, check, story

Code = grpc.StatusCode


@story
def drain(world: World):
    """A node that is told Drain goes on until its delay is over, is welcomed elsewhere, and loses no command."""
    leaving = world.needs("leaving")
    lane = world.lane()
    with leaving.session({lane: 4}) as old:
        done, held = world.enqueue(lane), world.enqueue(lane)
        old.expect_command(done)
        old.expect_command(held)
        old.report_stored(done, "SUCCEEDED")
        old.report_stored(held, "RUNNING")
        world.drain_leaving()
        delay_s = old.expect("drain").reconnect_after_ms / 1000
        with leaving.open() as late:
            late.send(leaving.hello())
            refused = late.must_end(Code.UNAVAILABLE)
            hint = refused.trailers.get("grpc-retry-pushback-ms", "")
            check(hint.isdecimal() and int(hint) > 0, f"refused without a delay: {refused.trailers}")
        meanwhile = world.enqueue(lane)
        old.expect_command(meanwhile)
        # What is tested is this very delay.
        old.must_stay_open(delay_s)
        with world.node.session({lane: 4}, known=[(held, 1, "RUNNING"), (meanwhile, 1, "ACCEPTED")]) as new:
            check(new.epoch > old.epoch, f"epoch {new.epoch} follows {old.epoch}")
            old.half_close()
            end = old.ended()
            # The old gateway may have heard of the new session first.
            check(end.code in (Code.OK, Code.ABORTED), f"the session that was left ended with {end}")
            after = world.enqueue(lane)
            new.expect_command(after)
            for id in (held, meanwhile, after):
                new.report_stored(id, "SUCCEEDED")
            for id in (done, held, meanwhile, after):
                world.database.await_terminal(id, "succeeded")
            frames = [frame.command for frame in [*old.received, *new.received] if frame.HasField("command")]
            sent = sorted(command.command_id for command in frames if command.lane == lane)
            expected = sorted(id.bytes for id in (done, held, meanwhile, after))
            check(sent == expected, f"{len(sent)} commands were sent; expected each of {len(expected)} once")
