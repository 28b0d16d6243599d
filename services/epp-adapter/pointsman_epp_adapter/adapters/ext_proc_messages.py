"""`ProcessingRequest` and `ProcessingResponse`
(https://www.envoyproxy.io/docs/envoy/latest/api-v3/service/ext_proc/v3/external_processor.proto).

They are made of their descriptors, in a pool of their own: whatever else an environment has of Envoy's packages doesn't
matter. Their fields have no static types.
"""

from importlib.resources import files
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

__all__ = ["DecodeError", "ProcessingRequest", "ProcessingResponse"]

_PACKAGE: Final = "envoy.service.ext_proc.v3"


def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    data = files("pointsman_epp_adapter.adapters").joinpath("external_processor.binpb").read_bytes()
    # Each file stands behind those that it imports.
    for file in FileDescriptorSet.FromString(data).file:
        pool.Add(file)
    return pool


_POOL: Final = _pool()

ProcessingRequest: Final[Any] = GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.ProcessingRequest"))
"""The messages that Envoy sends."""
ProcessingResponse: Final[Any] = GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.ProcessingResponse"))
"""The answers to Envoy."""
