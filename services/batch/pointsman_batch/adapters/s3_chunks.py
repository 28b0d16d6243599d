"""The content of files in a store that speaks S3's protocol; imported only where one is configured."""

# botocore has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any, Final, TypeVar

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from botocore.session import get_session

_CONNECT_S: Final = 5.0
_READ_S: Final = 10.0
_TRIES: Final = 3
_CONNECTIONS: Final = 32
_SUM: Final = "crc32"
"""The metadata of an object that has the checksum of its content: not every store keeps its own, and a store may send
less than it has, with a length that fits."""
_MISSING: Final = frozenset({"NoSuchKey", "404"})

T = TypeVar("T")


class S3Chunks:
    """ChunkStore in a bucket: an object for each chunk. Credentials come from the environment, shared files, or the
    role of the container or machine, as AWS's tools find them."""

    def __init__(self, bucket: str, prefix: str, endpoint: str | None) -> None:
        """`prefix` begins the keys of all objects. `endpoint`: of another store than AWS's."""
        self._bucket: Final = bucket
        self._prefix: Final = prefix
        self._endpoint: Final = endpoint
        self._client: Any = None
        self._connecting: Final = asyncio.Lock()
        # Calls to a store that hangs would take all of the process's threads, which resolve names too.
        self._threads: Final = ThreadPoolExecutor(_CONNECTIONS, "s3")

    async def put_chunk(self, file: str, number: int, data: bytes) -> None:
        """See `ChunkStore.put_chunk`."""
        key = self._key(file, number)
        checksum = {_SUM: str(zlib.crc32(data))}
        await self._call(lambda client: client.put_object(Bucket=self._bucket, Key=key, Body=data, Metadata=checksum))

    async def get_chunk(self, file: str, number: int) -> bytes | None:
        """See `ChunkStore.get_chunk`."""
        key = self._key(file, number)

        def read(client: Any) -> bytes | None:
            try:
                found = client.get_object(Bucket=self._bucket, Key=key)
                data = found["Body"].read()
            except ClientError as error:
                if _code(error) in _MISSING:
                    return None
                raise
            # Objects of earlier versions have no checksum. A page that a proxy answers instead has no ETag either.
            if "ETag" not in found or found["Metadata"].get(_SUM, checksum := str(zlib.crc32(data))) != checksum:
                raise OSError("the S3 store sent other bytes than were written")
            return data

        return await self._call(read)

    async def delete_chunks(self, file: str) -> None:
        """See `ChunkStore.delete_chunks`."""

        def delete(client: Any) -> None:
            pages = client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._key(file, "")):
                # One by one: requests to delete many need a checksum that some stores refuse (aws/aws-sdk-js-v3 #6819).
                for each in page.get("Contents", ()):
                    client.delete_object(Bucket=self._bucket, Key=each["Key"])

        await self._call(delete)

    def _key(self, file: str, number: int | str) -> str:
        return f"{self._prefix}{file}/{number}"

    async def _call(self, action: Callable[[Any], T]) -> T:
        """Do it in a thread. Raises OSError with the store's code; nothing of a key or credential is in it."""
        try:
            loop = asyncio.get_running_loop()
            async with self._connecting:
                if self._client is None:
                    self._client = await loop.run_in_executor(self._threads, self._connect)
            return await loop.run_in_executor(self._threads, action, self._client)
        except ClientError as error:
            raise OSError(f"the S3 store refused: {_code(error)}") from None
        except (BotoCoreError, ResponseParserError, HTTPException, ValueError) as error:
            # ValueError: a header that isn't the number that it should be.
            raise OSError(f"the S3 store can't be reached: {type(error).__name__}") from None

    def _connect(self) -> object:
        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            retries={"mode": "standard", "total_max_attempts": _TRIES},
            max_pool_connections=_CONNECTIONS,
            # By default botocore adds checksums that some stores refuse (langgenius/dify #35117, boto/s3transfer #327).
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            # A bucket's name as a host needs DNS that other stores seldom have.
            s3={"addressing_style": "auto" if self._endpoint is None else "path"},
        )
        return get_session().create_client("s3", endpoint_url=self._endpoint, config=config)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "unknown"))
