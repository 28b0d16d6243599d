"""Endpoints that a file lists."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from pointsman_core.config import load
from pointsman_metrics_collector.adapters.endpoint_files import EndpointFiles
from pointsman_metrics_collector.domain.finding import EngineSource
from pointsman_testing import eventually


class Found:
    """The endpoints that were published, by pool."""

    def __init__(self) -> None:
        self.by_pool: dict[str, EngineSource] = {}

    def take(self, pool: str, finding: EngineSource) -> None:
        self.by_pool[pool] = finding

    def workers(self, pool: str = "p") -> list[str]:
        return sorted(worker for _, worker in self.by_pool[pool].engines)


@asynccontextmanager
async def watching(found: Found, **files: Path) -> AsyncGenerator[EndpointFiles]:
    watched = EndpointFiles(found.take, look_s=0.2)
    watched.follow_files(
        load({"pools": {pool: {"discovery": "file", "file": str(file)} for pool, file in files.items()}})
    )
    supervised = asyncio.create_task(watched.supervise())
    try:
        yield watched
    finally:
        supervised.cancel()
        await asyncio.wait([supervised])
        await watched.stop()


async def test_a_changed_file_is_read_at_once_and_a_broken_one_keeps_the_last_good_list(tmp_path: Path) -> None:
    file, found = tmp_path / "endpoints.yaml", Found()
    file.write_text(
        "engines:\n  - http://10.0.0.1:8000\n  - {url: 'http://10.0.0.2:8000', name: second, role: prefill}\n"
    )
    async with watching(found, p=file):
        assert found.workers() == ["10.0.0.1:8000", "second"]
        assert found.by_pool["p"].engines["p", "second"].worker.role == "prefill"
        file.write_text("engines:\n  - http://10.0.0.1:8000\n  - {url: 'http://10.0.0.2:8000', rool: prefill}\n")
        await eventually(lambda: "unknown key 'rool'" in found.by_pool["p"].problem)
        assert "(line 3)" in found.by_pool["p"].problem
        assert str(file) in found.by_pool["p"].problem
        assert found.workers() == ["10.0.0.1:8000", "second"]
        file.write_text("engines: [http://10.0.0.1:8000")
        await eventually(lambda: "not valid YAML" in found.by_pool["p"].problem)
        file.write_text('{"engines": ["http://10.0.0.3:8000"]}')
        await eventually(lambda: found.workers() == ["10.0.0.3:8000"] and not found.by_pool["p"].problem)
        file.unlink()
        await eventually(lambda: "No such file" in found.by_pool["p"].problem)
        assert found.workers() == ["10.0.0.3:8000"]


async def test_a_file_that_is_exchanged_as_a_config_map_is_followed(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"..v{number}").mkdir()
        (tmp_path / f"..v{number}" / "endpoints.yaml").write_text(f"engines: ['http://10.0.0.{number}:8000']")
    (tmp_path / "..data").symlink_to("..v1")
    (tmp_path / "endpoints.yaml").symlink_to("..data/endpoints.yaml")
    found = Found()
    async with watching(found, p=tmp_path / "endpoints.yaml"):
        assert found.workers() == ["10.0.0.1:8000"]
        (tmp_path / "..new").symlink_to("..v2")
        os.replace(tmp_path / "..new", tmp_path / "..data")  # noqa: PTH105 - as the kubelet does
        await eventually(lambda: found.workers() == ["10.0.0.2:8000"])


async def test_a_folder_that_comes_later_is_found_and_each_pool_has_a_file_of_its_own(tmp_path: Path) -> None:
    found, first, second = Found(), tmp_path / "a.yaml", tmp_path / "later" / "b.yaml"
    first.write_text("engines: ['http://10.0.0.1:1']")
    async with watching(found, p=first, q=second) as watched:
        assert "No such file" in found.by_pool["q"].problem
        second.parent.mkdir()
        second.write_bytes(b"\xff")
        await eventually(lambda: "not UTF-8" in found.by_pool["q"].problem)
        second.write_text("engines: ['http://10.0.0.2:1']")
        await eventually(lambda: found.by_pool["q"].engines and found.workers("q") == ["10.0.0.2:1"])
        assert found.workers() == ["10.0.0.1:1"]
        watched.follow_files(load({"pools": {"p": {"discovery": "file", "file": str(second)}}}))
        assert found.workers() == ["10.0.0.2:1"]
