"""The stories' frame: how one is declared, what it is given, and how its outcome is told.

Owns: the registry of stories and the runner. Never: what a story shows.

1. A story passes, fails, or is skipped because something that it needs was not given; a skipped
   one is never counted as passed.
2. Whatever a story leaves open is closed and whatever it left enqueued is canceled after it.
"""

import os
import signal
import time
import traceback
import uuid
from dataclasses import dataclass, field

import grpc

from caller import Caller
from database import Database
from node import Node, StoryFailed
from wire import Wire

STORIES = {}


class NotGiven(Exception):
    """The story needs something that the command line did not give."""


def story(function):
    """Declares a story; its name is the function's, its text the function's docstring."""
    STORIES[function.__name__] = function
    return function


def only_over(transport: str):
    """The story is of one transport; it is told by `@story` above it."""

    def marked(function):
        function.transport = transport
        return function

    return marked


def stories_over(transport: str) -> list:
    """The names of the stories that hold over a transport, in order."""
    return [name for name, function in STORIES.items() if getattr(function, "transport", transport) == transport]


@dataclass
class World:
    """What a story works with."""

    wire: Wire
    node: Node
    database: Database
    anonymous: Node
    second_node: Node | None = None
    stranger: Node | None = None
    small_bucket: Node | None = None
    join_tokens: list = field(default_factory=list)
    known_secret: tuple | None = None
    leaving: Node | None = None
    leaving_pid: int | None = None
    caller: Caller | None = None

    def lane(self, word="lane") -> str:
        """A lane's name that no other story has."""
        return f"{word}-{uuid.uuid4().hex[:8]}"

    def enqueue(self, lane: str, **more) -> uuid.UUID:
        """Enqueues a command for the node."""
        return self.database.enqueue(self.node.identity.node_id, lane, **more)

    def join_token(self) -> str:
        """A join token that no other story has."""
        if not self.join_tokens:
            raise NotGiven("needs --join-token, one for each story that joins")
        return self.join_tokens.pop()

    def secret(self) -> tuple:
        """Name and value of a secret that joined nodes may fetch."""
        if self.known_secret is None:
            raise NotGiven("needs --secret-name and --secret-value")
        return self.known_secret

    def needs(self, what: str):
        """A part of the world that was given only if its flags were."""
        part = getattr(self, what)
        if part is None:
            raise NotGiven({
                "second_node": "needs --second-cert, --second-key and --second-node-id",
                "stranger": "needs --stranger-cert and --stranger-key, of another authority",
                "caller": "needs --control-endpoint, --control-ca, --control-cert, --control-key, --ticket-key-name and --ticket-key",
                "leaving": "needs --leaving-endpoint and --leaving-pid",
                "small_bucket": "needs --expect-small-bucket or --small-bucket-endpoint",
            }[what])
        return part

    def drain_leaving(self) -> None:
        """Tells the gateway that may be sent away to stop."""
        os.kill(self.leaving_pid, signal.SIGTERM)


def check(holds: bool, otherwise: str) -> None:
    """Fails the story with that sentence."""
    if not holds:
        raise StoryFailed(otherwise)


def run(world: World, names) -> int:
    """Runs the stories in order, prints a line for each, and gives the number of failures."""
    passed = failed = skipped = 0
    began = time.monotonic()
    for name in names:
        start = time.monotonic()
        verdict, reason = _tell(world, STORIES[name])
        took_ms = (time.monotonic() - start) * 1000
        print(f"{verdict:4} {name} ({took_ms:.0f} ms)" + (f": {reason}" if reason else ""), flush=True)
        passed += verdict == "PASS"
        failed += verdict == "FAIL"
        skipped += verdict == "SKIP"
    summary = f"{passed} passed, {failed} failed"
    if skipped:
        summary += f", {skipped} skipped"
    print(f"{summary} in {time.monotonic() - began:.1f} s", flush=True)
    return failed


def _tell(world: World, function):
    try:
        function(world)
        verdict = ("PASS", "")
    except NotGiven as reason:
        verdict = ("SKIP", str(reason))
    except StoryFailed as failure:
        verdict = ("FAIL", str(failure))
    except grpc.RpcError as error:
        verdict = ("FAIL", f"the call ended with {error.code().name}: {error.details()}")
    except Exception:
        verdict = ("FAIL", traceback.format_exc().strip())
    try:
        world.database.cancel_leftovers()
    except Exception as error:
        if verdict[0] != "FAIL":
            verdict = ("FAIL", f"the database could not be cleaned after the story: {error}")
    return verdict
