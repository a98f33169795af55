"""A caller of tunnels: a service that mints tickets, and opens tunnels at a gateway's control API.

Owns: a stock gRPC client, whose framing is that of `POST /v1/tunnels`, and the signing of tickets (JWT, ES256) with
the `cryptography` library. Never: what goes over a tunnel.
"""

import base64
import json
import queue
import time
import uuid

import grpc
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from wire import Wire

OPEN = "/v1/tunnels"
PATIENCE_S = 60.0


class Caller:
    """Where the control API is, what proves the caller, and the key of its tickets."""

    def __init__(self, wire: Wire, endpoint: str, ca: bytes, certificate: bytes, key: bytes, ticket_key: tuple):
        self._wire = wire
        self._channel = grpc.secure_channel(endpoint, grpc.ssl_channel_credentials(ca, key, certificate))
        name, der = ticket_key
        self._key_name, self._key = name, serialization.load_der_private_key(der, None)

    def open(self, node_id: str, kind: str, asked: queue.SimpleQueue):
        """Opens a tunnel to a node; sends what `asked` is given, and gives the call whose messages are the tunnel's."""
        asked.put(self._wire.control.TunnelOpen(node_id=node_id, ticket=self._ticket(node_id), kind=kind))
        call = self._channel.stream_stream(
            OPEN,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=self._wire.pb.TunnelFrame.FromString,
        )
        return call(iter(asked.get, None), timeout=PATIENCE_S)

    def _ticket(self, node_id: str) -> str:
        now = time.time()
        header = {"alg": "ES256", "typ": "JWT", "kid": self._key_name}
        claims = {"aud": "gateway", "sub": "conformance", "node": node_id, "iat": now, "exp": now + 30}
        claims["jti"] = str(uuid.uuid4())
        signed = b".".join(_text(json.dumps(part).encode()) for part in (header, claims))
        r, s = decode_dss_signature(self._key.sign(signed, ec.ECDSA(hashes.SHA256())))
        return b".".join([signed, _text(r.to_bytes(32, "big") + s.to_bytes(32, "big"))]).decode()


def _text(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
