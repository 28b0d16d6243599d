"""Writes the descriptors of ext_proc's messages anew, from the distribution xds-protos; see epp-adapter's README.

Run it where xds-protos is installed and this workspace is not.
"""

# pyright: basic, reportMissingImports=false

from pathlib import Path

from envoy.service.ext_proc.v3 import external_processor_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

FILE = (
    Path(__file__).resolve().parent.parent
    / "services/epp-adapter/pointsman_epp_adapter/adapters/external_processor.binpb"
)


def gather(file: FileDescriptor, found: dict[str, FileDescriptorProto]) -> None:
    """Put the file behind those that it imports."""
    if file.name not in found:
        for imported in file.dependencies:
            gather(imported, found)
        proto = FileDescriptorProto()
        file.CopyToProto(proto)
        found[file.name] = proto


def main() -> None:
    found: dict[str, FileDescriptorProto] = {}
    gather(external_processor_pb2.DESCRIPTOR, found)
    FILE.write_bytes(FileDescriptorSet(file=found.values()).SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
