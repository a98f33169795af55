#!/usr/bin/env python3
"""Runs the stories of the node protocol against a real gateway, with stock client libraries.

Owns: the command line. The stories are in `session_stories.py`, `command_stories.py`,
`event_stories.py`, `report_stories.py`, `inventory_stories.py`, `lane_stories.py`, `spec_stories.py`,
`drain_stories.py`, `relay_stories.py` and `tunnel_stories.py`; run it through `conformance/run`, which brings the libraries.

Exit status: 0 every story that ran passed, 1 a story failed, 2 the run could not start.
"""

import argparse
import os
import sys
import uuid
from pathlib import Path

import psycopg

import session_stories  # noqa: F401 (each of these declares its stories)
import command_stories  # noqa: F401
import event_stories  # noqa: F401
import report_stories  # noqa: F401
import inventory_stories  # noqa: F401
import lane_stories  # noqa: F401
import spec_stories  # noqa: F401
import relay_stories  # noqa: F401
import tunnel_stories  # noqa: F401
import drain_stories  # noqa: F401
from caller import Caller
from database import Database
from carriers import TRANSPORTS
from node import Identity, Node
from story import STORIES, World, run, stories_over
from wire import Wire

CHECKOUT = Path(__file__).resolve().parent.parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Runs the stories of the node protocol against a real gateway.",
        epilog="Each flag may also be given as a variable: --node-id as GATEWAY_NODE_ID, and so on.",
    )

    def flag(name, text, **more):
        default = os.environ.get("GATEWAY_" + name.removeprefix("--").replace("-", "_").upper())
        parser.add_argument(name, default=default, help=text, **more)

    flag("--endpoint", "HOST:PORT of the gateway's node listener")
    flag("--ca", "PEM file: the authority that signed the gateway's certificate")
    flag("--cert", "PEM file: the node's certificate chain, leaf first")
    flag("--key", "PEM file: the node's private key")
    flag("--node-id", "the node's id, as it stands in its certificate (spiffe://...)")
    flag("--database", "URL of the database, as a client that may enqueue (postgresql://...)")
    flag("--server-name", "name to expect in the gateway's certificate, where it is not the endpoint's host")
    flag("--second-cert", "certificate chain of a second node, for stories between nodes")
    flag("--second-key", "private key of the second node")
    flag("--second-node-id", "id of the second node")
    flag("--stranger-cert", "certificate of another authority, to be refused")
    flag("--stranger-key", "its private key")
    flag("--small-bucket-endpoint", "HOST:PORT of a gateway with a small token bucket of session opens")
    flag("--join-token", "join tokens, separated by commas: one for each story that joins")
    flag("--secret-name", "name of a secret that nodes which join may fetch")
    flag("--secret-value", "the value of that secret, as text")
    flag("--leaving-endpoint", "HOST:PORT of another gateway of that database, which the run may send away")
    flag("--leaving-pid", "its process id: it is told to stop", type=int)
    flag("--control-endpoint", "HOST:PORT of the gateway's control API, for stories of tunnels")
    flag("--control-ca", "PEM file: the authority that signed its certificate")
    flag("--control-cert", "certificate of a caller that may open tunnels")
    flag("--control-key", "its private key")
    flag("--ticket-key-name", "name (kid) of the key that signs tickets")
    flag("--ticket-key", "DER file: that private key (P-256, PKCS#8)")
    flag("--transport", "h2 (gRPC) or websocket (WebSocket, and HTTP/1.1 for unary calls)", choices=TRANSPORTS)
    flag("--proto", "folder with gateway/v1/gateway.proto (default: that of the checkout)")
    parser.add_argument(
        "--expect-small-bucket", action="store_true", help="the gateway at --endpoint itself has the small bucket"
    )
    parser.add_argument("--story", action="append", metavar="NAME", help="run only this story; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the stories and what they show, then exit")
    return parser.parse_args()


def world_of(options: argparse.Namespace) -> World:
    missing = [
        f"--{name.replace('_', '-')}"
        for name in ("endpoint", "ca", "cert", "key", "node_id", "database")
        if not getattr(options, name)
    ]
    if missing:
        refuse(f"these must be given: {', '.join(missing)} (see --help)")
    wire = Wire(Path(options.proto) if options.proto else CHECKOUT / "proto" / "proto")
    ca, server_name = read(options.ca), options.server_name
    try:
        database = Database(options.database)
    except psycopg.Error as error:
        refuse(f"the database does not answer: {error}")

    def node(cert, key, node_id, endpoint=options.endpoint):
        identity = Identity(node_id, read(cert), read(key))
        return Node(wire, endpoint, ca, server_name, identity, options.transport)

    first = (options.cert, options.key, options.node_id)
    world = World(
        wire=wire,
        node=node(*first),
        database=database,
        anonymous=Node(wire, options.endpoint, ca, server_name, None, options.transport),
    )
    if options.second_cert and options.second_key and options.second_node_id:
        world.second_node = node(options.second_cert, options.second_key, options.second_node_id)
    if options.stranger_cert and options.stranger_key:
        world.stranger = node(options.stranger_cert, options.stranger_key, f"stranger-{uuid.uuid4()}")
    if options.expect_small_bucket or options.small_bucket_endpoint:
        world.small_bucket = node(*first, endpoint=options.small_bucket_endpoint or options.endpoint)
    world.join_tokens = [token for token in (options.join_token or "").split(",") if token]
    if options.secret_name and options.secret_value:
        world.known_secret = (options.secret_name, options.secret_value)
    if options.leaving_endpoint and options.leaving_pid:
        world.leaving = node(*first, endpoint=options.leaving_endpoint)
        # The same machine dials both, and has not rebooted in between.
        world.leaving.boot_id = world.node.boot_id
        world.leaving_pid = options.leaving_pid
    if options.control_endpoint and options.ticket_key:
        files = (options.control_ca, options.control_cert, options.control_key)
        ticket_key = (options.ticket_key_name, read(options.ticket_key))
        world.caller = Caller(wire, options.control_endpoint, *map(read, files), ticket_key)
    return world


def read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        refuse(f"{path} can't be read: {error.strerror}")


def refuse(sentence: str):
    print(f"gateway_conformance: {sentence}", file=sys.stderr)
    sys.exit(2)


def main() -> int:
    options = arguments()
    options.transport = options.transport or "h2"
    if options.list:
        for name, function in STORIES.items():
            print(f"{name}: {function.__doc__}")
        return 0
    names = options.story or stories_over(options.transport)
    unknown = [name for name in names if name not in STORIES]
    if unknown:
        refuse(f"there is no story {', '.join(unknown)}; --list shows them all")
    failed = run(world_of(options), names)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
