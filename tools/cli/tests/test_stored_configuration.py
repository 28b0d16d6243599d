"""The bucket's revisions, read through a client that sometimes sees none of them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import nats.aio.client
import pytest
from nats.js.errors import KeyNotFoundError, NoKeysError
from rich.console import Console

from pointsman_cli.config import config_commands, stored_configuration
from pointsman_cli.config.stored_configuration import ConfigurationStore
from pointsman_cli.words import CommandError


class Bucket:
    """Holds one revision, or none, and shows it at the third look."""

    def __init__(self, *, holds: bool) -> None:
        self.holds = holds
        self.looks = 0

    async def history(self, key: str) -> list[object]:
        self.looks += 1
        if not self.holds or self.looks < 3:
            raise NoKeysError
        return [SimpleNamespace(key=key, revision=7, value=b"text", created=datetime.now(UTC), operation=None)]

    async def get(self, key: str) -> object:
        if not self.holds:
            raise KeyNotFoundError
        return SimpleNamespace(key=key, revision=7, value=b"text")

    async def put(self, key: str, value: bytes) -> int:
        del key, value
        return 8


class Client:
    """As much of nats-py's client as a store needs."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def jetstream(self, timeout: float) -> "Client":
        del timeout
        return self

    async def key_value(self, name: str) -> Bucket:
        del name
        return self._bucket


def store(bucket: Bucket) -> ConfigurationStore:
    return ConfigurationStore(cast("nats.aio.client.Client", Client(bucket)))


async def test_a_history_that_seems_empty_is_read_again_while_there_is_a_configuration() -> None:
    bucket = Bucket(holds=True)
    assert [stored.revision for stored in await store(bucket).list_revisions()] == [7]
    assert bucket.looks == 3


async def test_a_bucket_without_a_configuration_has_no_revisions() -> None:
    assert await store(Bucket(holds=False)).list_revisions() == []


async def test_a_text_that_is_current_already_makes_no_revision() -> None:
    assert await store(Bucket(holds=True)).store_text("text") == 7
    assert await store(Bucket(holds=True)).store_text("another") == 8
    assert await store(Bucket(holds=False)).store_text("text") == 8


async def test_a_revision_of_0_is_not_the_one_that_is_taken_when_none_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @asynccontextmanager
    async def opened(url: str | None) -> AsyncGenerator[ConfigurationStore]:
        del url
        yield store(Bucket(holds=True))

    monkeypatch.setattr(stored_configuration, "opened", opened)
    (file := tmp_path / "pointsman.yaml").write_text("pools: {a: {}}\n")
    console = Console(quiet=True)
    for command in (config_commands.rollback(None, 0, console), config_commands.diff(None, file, 0, console)):
        with pytest.raises(CommandError, match=r"revision 0 isn't stored; stored revisions: 7\."):
            await command
