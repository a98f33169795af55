#!/usr/bin/env python3
"""Gives this machine its first certificate: a key made here, a join token, one call to a gateway.

Owns: the command line of `conformance/join`. Never: a key that others may read.

Exit status: 0 the certificate is there, 1 the gateway refused, 2 the command line is wrong.
"""

import argparse
import os
import sys
from pathlib import Path

import grpc

from enrol import join, node_id_of
from node import Node
from wire import Wire

CHECKOUT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="conformance/join", description=__doc__.splitlines()[0])
    parser.add_argument("--endpoint", required=True, help="HOST:PORT of a gateway's node listener")
    parser.add_argument("--ca", required=True, help="PEM file: the authority that signed the gateway's certificate")
    parser.add_argument("--token-file", help="file with the join token, '-' for stdin")
    parser.add_argument("--token", help="the join token itself, where others may see the command line of a process")
    parser.add_argument("--server-name", help="name to expect in the gateway's certificate")
    parser.add_argument("--out", required=True, help="folder for node.crt and node.key; made if it is not there")
    options = parser.parse_args()
    if bool(options.token) == bool(options.token_file):
        parser.error("give the token with --token-file or with --token")
    if options.token:
        token = options.token
    else:
        token = sys.stdin.read() if options.token_file == "-" else Path(options.token_file).read_text()
    wire = Wire(CHECKOUT / "proto" / "proto")
    node = Node(wire, options.endpoint, Path(options.ca).read_bytes(), options.server_name, None)
    try:
        chain, key = join(wire, node, token.strip(), os.uname().nodename)
    except grpc.RpcError as error:
        print(f"join: refused, {error.code().name}: {error.details()}", file=sys.stderr)
        return 1
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    write(out / "node.key", key, 0o600)
    write(out / "node.crt", chain, 0o644)
    print(f"node id      {node_id_of(chain)}")
    print(f"certificate  {out / 'node.crt'}")
    print(f"key          {out / 'node.key'}")
    return 0


def write(path: Path, content: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


if __name__ == "__main__":
    sys.exit(main())
