"""How a machine comes by its certificate, on stock libraries: a key of its own, a CSR, one call.

Owns: the three unary calls of a node. Never: a key that leaves the machine, or a retry.
"""

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from carriers import post
from node import Node
from wire import Wire

PATIENCE_S = 15.0


def new_key_and_csr() -> tuple[bytes, bytes]:
    """A new private key (PEM) and a CSR for it (DER). The CSR names nobody: who signs it knows for whom."""
    key = ec.generate_private_key(ec.SECP256R1())
    csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem, csr.public_bytes(serialization.Encoding.DER)


def call(node: Node, name: str, request, answer):
    """One unary call of `gateway.v1.NodeGateway` on a connection of its own."""
    if node.transport == "websocket":
        return answer.FromString(post(node, name, request.SerializeToString()))
    with node.channel() as channel:
        method = channel.unary_unary(
            f"/gateway.v1.NodeGateway/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return method(request, timeout=PATIENCE_S)


def join(wire: Wire, node: Node, token: str, machine: str) -> tuple[bytes, bytes]:
    """Joins with a token; gives the certificate chain and its key, both PEM."""
    key, csr = new_key_and_csr()
    request = wire.pb.JoinRequest(token=token, csr_der=csr, machine=machine, software_version="conformance/1")
    answer = call(node, "Join", request, wire.pb.JoinResponse)
    return answer.certificate_chain_pem.encode(), key


def renew(wire: Wire, node: Node) -> tuple[bytes, bytes]:
    """Renews the certificate that the node has; gives the new chain and its key, both PEM."""
    key, csr = new_key_and_csr()
    answer = call(node, "Renew", wire.pb.RenewRequest(csr_der=csr), wire.pb.RenewResponse)
    return answer.certificate_chain_pem.encode(), key


def fetch_secret(wire: Wire, node: Node, name: str, version: str = "") -> bytes:
    """A secret's value; an empty version is the newest."""
    request = wire.pb.FetchSecretRequest(name=name, version=version)
    return call(node, "FetchSecret", request, wire.pb.FetchSecretResponse).value


def serial_of(chain: bytes) -> str:
    """The serial as `node_certs` has it: upper-case hex without leading zeros."""
    return f"{x509.load_pem_x509_certificate(chain).serial_number:X}"


def expiry_of(chain: bytes) -> str:
    """When the certificate ends."""
    return x509.load_pem_x509_certificate(chain).not_valid_after_utc.isoformat()


def node_id_of(chain: bytes) -> str:
    """The node's id: the URI in its certificate."""
    certificate = x509.load_pem_x509_certificate(chain)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.UniformResourceIdentifier)[0]
