"""The gRPC server: the external processor and gRPC health on one port."""

import asyncio
from typing import Final

import grpc.aio

from pointsman_epp_adapter.adapters.certificates import CertificateFiles
from pointsman_epp_adapter.adapters.grpc_health import GrpcHealth
from pointsman_epp_adapter.adapters.processor import Processor
from pointsman_epp_adapter.adapters.wire import METHOD, SERVICE, Event, decode
from pointsman_epp_adapter.settings import EppAdapterSettings

_MESSAGE_LIMIT: Final = 64 * 2**20
"""A buffered body comes in one message; how much of it is taken, the configuration says."""


class GrpcServer:
    """Serves between `start` and `stop`. `stop` gives open streams `grace_s` seconds and then cancels them."""

    def __init__(self, processor: Processor, stopping: asyncio.Event, settings: EppAdapterSettings) -> None:
        self.url = ""
        self._processor = processor
        self._stopping = stopping
        self._settings = settings
        self._server: grpc.aio.Server | None = None
        self._health = GrpcHealth()

    async def start(self) -> None:
        """Listen. Raises OSError when the address can't be had or a certificate can't be read."""
        settings = self._settings
        server = self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", _MESSAGE_LIMIT),
                ("grpc.max_send_message_length", _MESSAGE_LIMIT),
                ("grpc.so_reuseport", 0),
            ),
            maximum_concurrent_rpcs=settings.max_streams,
        )
        # Answers are bytes already.
        method: grpc.RpcMethodHandler[Event, bytes] = grpc.stream_stream_rpc_method_handler(
            self._processor.process, request_deserializer=decode, response_serializer=None
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
        self._health.join(server)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.port}"
        try:
            if settings.tls_cert is None or settings.tls_key is None:
                port = server.add_insecure_port(address)
            else:
                files = CertificateFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
                port = server.add_secure_port(address, files.credentials())
        except RuntimeError as error:
            raise OSError(f"{address} can't be listened on: {error}") from error
        self.url = f"grpc{'s' if settings.tls_cert else ''}://{host}:{port}"
        await server.start()

    def tell_health(self, *, serving: bool) -> None:
        """What gRPC health says from here on."""
        self._health.tell(serving=serving)

    async def stop(self) -> None:
        """Take no new stream, let the open ones end within the grace."""
        self._stopping.set()
        await self._health.end()
        if self._server is not None:
            await self._server.stop(self._settings.drain_timeout_s)
