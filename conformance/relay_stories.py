"""Stories of the calls that a gateway passes on: Join, Renew, FetchSecret.

Owns: what a machine with a join token does on stock clients and the `cryptography` library.
Never: a rule of the service behind the gateway, beyond what every such service must keep.
"""

import grpc

from enrol import call, join, new_key_and_csr
from node import Identity, Node
from story import World, check, story

Code = grpc.StatusCode


@story
def join_with_a_token_alone(world: World):
    """A machine with nothing but a join token gets a certificate, and a session with it; the token is spent."""
    token = world.join_token()
    joined = _joined(world, token)
    with joined.session() as session:
        session.heartbeat(1)
    _refused(Code.UNAUTHENTICATED, lambda: join(world.wire, world.anonymous, token, "conformance"))


@story
def join_with_a_wrong_token(world: World):
    """A token that nobody minted is refused UNAUTHENTICATED, with a sentence."""
    _refused(Code.UNAUTHENTICATED, lambda: join(world.wire, world.anonymous, "no-such-token", "conformance"))


@story
def renew_for_the_next_certificate(world: World):
    """Renew gives another certificate for the same node; both are good for a session."""
    joined = _joined(world, world.join_token())
    key, csr = new_key_and_csr()
    pb = world.wire.pb
    answer = call(joined, "Renew", pb.RenewRequest(csr_der=csr), pb.RenewResponse)
    chain = answer.certificate_chain_pem.encode()
    check(chain != joined.identity.certificate, "the renewed certificate is the old one")
    renewed = _node(joined, Identity("", chain, key))
    for node in (joined, renewed):
        with node.session() as session:
            session.heartbeat(1)


@story
def fetch_a_secret(world: World):
    """FetchSecret gives a secret's value and version; one that is not there ends NOT_FOUND."""
    name, value = world.secret()
    joined = _joined(world, world.join_token())
    pb = world.wire.pb
    answer = call(joined, "FetchSecret", pb.FetchSecretRequest(name=name), pb.FetchSecretResponse)
    check(answer.value == value.encode(), "the secret has another value")
    check(answer.version != "", "the secret has no version")
    for missing in (pb.FetchSecretRequest(name=f"{name}-missing"), pb.FetchSecretRequest(name=name, version="none")):
        _refused(Code.NOT_FOUND, lambda: call(joined, "FetchSecret", missing, pb.FetchSecretResponse))


@story
def relayed_calls_need_a_certificate(world: World):
    """Renew and FetchSecret end UNAUTHENTICATED without a client certificate."""
    pb = world.wire.pb
    renew = pb.RenewRequest(csr_der=new_key_and_csr()[1])
    fetch = pb.FetchSecretRequest(name="any")
    for name, request, kind in (("Renew", renew, pb.RenewResponse), ("FetchSecret", fetch, pb.FetchSecretResponse)):
        _refused(Code.UNAUTHENTICATED, lambda: call(world.anonymous, name, request, kind))


def _joined(world: World, token: str) -> Node:
    """A node that has just joined."""
    chain, key = join(world.wire, world.anonymous, token, "conformance")
    return _node(world.anonymous, Identity("", chain, key))


def _node(like: Node, identity: Identity) -> Node:
    """A node of that identity that dials as the other does."""
    return Node(like.wire, like.endpoint, like.ca, like.server_name, identity, like.transport)


def _refused(code: grpc.StatusCode, calling) -> None:
    try:
        calling()
    except grpc.RpcError as error:
        check(error.code() == code, f"it ended {error.code().name}: {error.details()}; expected {code.name}")
        check(bool(error.details()), f"it ended {code.name} and no sentence that says why")
        return
    check(False, f"it was answered OK; expected {code.name}")
