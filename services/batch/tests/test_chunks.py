"""Each store of chunks keeps the last content of a file, and nothing of a deleted file."""

# botocore has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.session import get_session
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moto.server import ThreadedMotoServer

from pointsman_batch.adapters.chunks import CHUNK_BYTES, ChunkStore, FolderChunks
from pointsman_batch.adapters.files import FileWriter
from pointsman_batch.adapters.s3_chunks import S3Chunks
from pointsman_testing import eventually
from pointsman_testing.faulty_store import FAULTS, Fault, FaultyStore

BUCKET = "files-of-batches"
CANARY = "canary-of-the-store"
Steps = list[tuple[str, str, int, bytes]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "get", "delete"]),
        st.sampled_from(["file-a", "file-ab"]),
        st.integers(0, 12),
        st.binary(max_size=40),
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server that speaks S3's protocol, with a bucket."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("AWS_ACCESS_KEY_ID", "a-key"),
            ("AWS_SECRET_ACCESS_KEY", CANARY),
            ("AWS_DEFAULT_REGION", "us-east-1"),
            ("AWS_EC2_METADATA_DISABLED", "true"),
            ("AWS_CONFIG_FILE", "/nowhere"),
            ("AWS_SHARED_CREDENTIALS_FILE", "/nowhere"),
        ):
            patch.setenv(name, value)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        client = get_session().create_client("s3", endpoint_url=url)
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield url
        server.stop()


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ChunkStore:
    if request.param == "folder":
        return FolderChunks(tmp_path / "files")
    return S3Chunks(BUCKET, "some/prefix/", request.getfixturevalue("endpoint"))


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_a_store_has_what_was_written_last_and_nothing_that_was_deleted(store: ChunkStore, steps: Steps) -> None:
    async def run() -> None:
        for file in ("file-a", "file-ab"):
            await store.delete_chunks(file)
        kept: dict[tuple[str, int], bytes] = {}
        for step, file, number, data in steps:
            if step == "put":
                await store.put_chunk(file, number, data)
                kept[file, number] = data
            elif step == "delete":
                await store.delete_chunks(file)
                kept = {key: value for key, value in kept.items() if key[0] != file}
            assert await store.get_chunk(file, number) == kept.get((file, number))
        for (file, number), data in kept.items():
            assert await store.get_chunk(file, number) == data

    asyncio.run(run())


async def test_a_file_is_written_in_chunks_and_read_as_it_was(store: ChunkStore) -> None:
    writer = FileWriter(store, "file-long")
    content = bytes(range(256)) * (CHUNK_BYTES // 100)
    for begin in range(0, len(content), 100_000):
        await writer.write(content[begin : begin + 100_000])
    await writer.finish()
    pieces = [await store.get_chunk("file-long", number) for number in range(writer.count)]
    assert b"".join(piece or b"" for piece in pieces) == content
    await store.delete_chunks("file-long")
    assert await store.get_chunk("file-long", 0) is None


@pytest.mark.parametrize("bucket", ["no-such-bucket", BUCKET])
async def test_the_error_of_a_store_names_its_reason_and_no_credential(endpoint: str, bucket: str) -> None:
    store = S3Chunks(bucket, "", endpoint if bucket != BUCKET else "http://127.0.0.1:9")
    with pytest.raises(OSError, match=r"NoSuchBucket|EndpointConnectionError") as failed:
        await store.put_chunk("file-a", 0, b"x")
    assert CANARY not in repr(failed.value)


async def test_a_chunk_that_a_full_disk_cant_take_leaves_the_one_before_and_no_part_of_itself(tmp_path: Path) -> None:
    """The limit of a file's size refuses writes as a full disk does."""
    chunks = FolderChunks(tmp_path)
    await chunks.put_chunk("file-a", 0, b"before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            await chunks.put_chunk("file-a", 0, bytes(CHUNK_BYTES))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [each.name for each in (tmp_path / "file-a").iterdir()] == ["0"]
    assert await chunks.get_chunk("file-a", 0) == b"before"
    await chunks.put_chunk("file-a", 0, bytes(CHUNK_BYTES))
    assert await chunks.get_chunk("file-a", 0) == bytes(CHUNK_BYTES)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_store_that_misbehaves_raises_an_error_that_callers_handle_and_works_again(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    del endpoint  # it sets the credentials
    monkeypatch.setattr("pointsman_batch.adapters.s3_chunks._READ_S", 0.2)
    monkeypatch.setattr("pointsman_batch.adapters.s3_chunks._TRIES", 1)
    data = bytes(range(256)) * 100
    async with FaultyStore() as faulty:
        store = S3Chunks(BUCKET, "", faulty.url)
        await store.put_chunk("file-a", 0, data)
        faulty.fault = fault
        with pytest.raises(OSError, match="S3 store"):
            await store.get_chunk("file-a", 0)
        with pytest.raises(OSError, match="S3 store"):
            await store.delete_chunks("file-a")
        faulty.fault = None
        assert await store.get_chunk("file-a", 0) == data
        await store.delete_chunks("file-a")
        assert not faulty.objects


async def test_a_store_that_hangs_takes_no_thread_that_others_of_the_process_need(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del endpoint
    monkeypatch.setattr("pointsman_batch.adapters.s3_chunks._READ_S", 300.0)
    monkeypatch.setattr("pointsman_batch.adapters.s3_chunks._TRIES", 1)
    async with FaultyStore() as faulty:
        faulty.fault = "hangs"
        store = S3Chunks(BUCKET, "", faulty.url)
        calls = [asyncio.create_task(store.get_chunk("file-a", number)) for number in range(40)]
        await eventually(lambda: faulty.refused == 32, timeout=60)
        assert await asyncio.to_thread(lambda: not any(call.done() for call in calls))
    assert all(isinstance(each, OSError) for each in await asyncio.gather(*calls, return_exceptions=True))
