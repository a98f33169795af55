"""The three unary calls of a machine as commands, on stock libraries: join, renew, fetch a secret.

Owns: the command lines of `conformance/join`, `renew` and `secret`. Never: a key that others may read.

Exit status: 0 the certificate or the secret is there, 1 the gateway refused, 2 the command line is wrong.
"""

import argparse
import os
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
ABOUT = {
    "join": "Joins this machine to a fleet with a join token: makes its key, and gets its certificate.",
    "renew": "Gets the next certificate of a node, with a new key.",
    "secret": "Fetches a secret of a node, and writes it to standard output.",
}


def arguments(command: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"conformance/{command}", description=ABOUT[command])
    parser.add_argument("--endpoint", required=True, help="HOST:PORT of a gateway's node listener")
    parser.add_argument("--ca", required=True, help="PEM file: the authority that signed the gateway's certificate")
    parser.add_argument("--server-name", help="name to expect in the gateway's certificate")
    if command == "join":
        parser.add_argument("--token-file", help="file with the join token, '-' for stdin")
        parser.add_argument("--token", help="the join token itself, where others may see a process's command line")
    else:
        parser.add_argument("--cert", required=True, help="PEM file: the node's certificate")
        parser.add_argument("--key", required=True, help="PEM file: its key")
    if command == "secret":
        parser.add_argument("--name", required=True, help="the secret's name")
        parser.add_argument("--version", default="", help="one version of it; without it the newest")
    else:
        parser.add_argument("--out", required=True, help="folder for node.crt and node.key; made if it is not there")
    options = parser.parse_args(sys.argv[2:])
    if command == "join" and bool(options.token) == bool(options.token_file):
        parser.error("give the token with --token-file or with --token")
    return options


def main() -> int:
    command = sys.argv[1]
    options = arguments(command)
    # Only now: --help, and what is wrong with a command line, are told without the libraries.
    import grpc

    from enrol import expiry_of, fetch_secret, join, node_id_of, renew, serial_of
    from node import Identity, Node
    from wire import Wire

    wire = Wire(CHECKOUT / "proto" / "proto")
    identity = None
    if command != "join":
        identity = Identity("", Path(options.cert).read_bytes(), Path(options.key).read_bytes())
    node = Node(wire, options.endpoint, Path(options.ca).read_bytes(), options.server_name, identity)
    try:
        if command == "secret":
            sys.stdout.buffer.write(fetch_secret(wire, node, options.name, options.version))
            return 0
        if command == "join":
            chain, key = join(wire, node, token_of(options), os.uname().nodename)
        else:
            chain, key = renew(wire, node)
    except grpc.RpcError as error:
        print(f"{command}: refused, {error.code().name}: {error.details()}", file=sys.stderr)
        return 1
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    write(out / "node.key", key, 0o600)
    write(out / "node.crt", chain, 0o644)
    print(f"node id      {node_id_of(chain)}")
    print(f"certificate  {out / 'node.crt'}")
    print(f"key          {out / 'node.key'}")
    print(f"serial       {serial_of(chain)}")
    print(f"good until   {expiry_of(chain)}")
    return 0


def token_of(options: argparse.Namespace) -> str:
    if options.token:
        return options.token
    return (sys.stdin.read() if options.token_file == "-" else Path(options.token_file).read_text()).strip()


def write(path: Path, content: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


if __name__ == "__main__":
    sys.exit(main())
