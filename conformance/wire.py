"""The generated messages, made anew at each run from the published `.proto` files.

Owns: running the stock protobuf compiler and importing what it wrote. Never: a hand-written
message, or a copy of the protocol.

1. The stubs come from `proto/proto` of this very checkout, so the script can't test an old wire.
2. Nothing is written outside a temporary folder.
"""

import importlib
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

SESSION = "/gateway.v1.NodeGateway/Session"
TUNNEL = "/gateway.v1.NodeGateway/Tunnel"


class Wire:
    """The modules of the protocol: `pb` (gateway.v1), `control` (gateway.control.v1), `health` and `health_grpc`."""

    def __init__(self, proto_root: Path):
        self._folder = tempfile.TemporaryDirectory(prefix="gateway-conformance-")
        out = self._folder.name
        # The health file is compiled relative to its `grpc` folder: a generated package named
        # `grpc` would hide the gRPC library itself.
        _compile([proto_root], out, "gateway/v1/gateway.proto")
        _compile([proto_root], out, "gateway/control/v1/control.proto")
        _compile([proto_root / "grpc"], out, "health/v1/health.proto")
        sys.path.insert(0, out)
        self.pb = importlib.import_module("gateway.v1.gateway_pb2")
        self.control = importlib.import_module("gateway.control.v1.control_pb2")
        self.health = importlib.import_module("health.v1.health_pb2")
        self.health_grpc = importlib.import_module("health.v1.health_pb2_grpc")

    def state_name(self, state: int) -> str:
        """`SUCCEEDED` for COMMAND_STATE_SUCCEEDED."""
        return self.pb.CommandState.Name(state).removeprefix("COMMAND_STATE_")

    def state(self, name: str) -> int:
        """The number of `SUCCEEDED`."""
        return self.pb.CommandState.Value(f"COMMAND_STATE_{name}")

    def reject_code(self, name: str) -> int:
        """The number of `UNKNOWN_COMMAND`."""
        return self.pb.RejectCode.Value(f"REJECT_CODE_{name}")


def _compile(includes: list, out: str, file: str) -> None:
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    for folder in includes:
        if not (folder / file).is_file():
            raise SystemExit(f"there is no {folder / file}; give the folder that holds it with --proto")
    arguments = ["protoc"]
    arguments += [f"-I{folder}" for folder in [*includes, well_known]]
    arguments += [f"--python_out={out}", f"--grpc_python_out={out}", file]
    if protoc.main(arguments) != 0:
        raise SystemExit(f"the protobuf compiler refused {file}")
