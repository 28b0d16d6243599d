"""Results of replays, simulations and regret: JSON files in one folder."""

import asyncio
import re
from pathlib import Path
from typing import Final, cast

import orjson
from pydantic import JsonValue

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,120}\.json")
LARGEST: Final = 16 * 2**20
"""Bytes of one file."""
MOST: Final = 200
"""Files that are listed; the newest."""


class Results:
    """Files of a folder; None is a folder without any."""

    def __init__(self, folder: Path | None) -> None:
        self._folder: Final = folder

    async def list_results(self) -> JsonValue:
        """Name, time and size of each file, the newest first."""
        return await asyncio.to_thread(self._listed)

    async def read_result(self, name: str) -> JsonValue:
        """The document of a file. Raises LookupError where there is none, ValueError for one that isn't JSON."""
        return await asyncio.to_thread(self._read, name)

    def _listed(self) -> JsonValue:
        if self._folder is None or not self._folder.is_dir():
            return []
        files = [path for path in self._folder.iterdir() if NAME.fullmatch(path.name) and path.is_file()]
        found = sorted(((path.stat(), path.name) for path in files), key=lambda each: -each[0].st_mtime)
        return [
            {"name": name, "at_ms": round(stat.st_mtime * 1000), "bytes": stat.st_size} for stat, name in found[:MOST]
        ]

    def _read(self, name: str) -> JsonValue:
        if self._folder is None or NAME.fullmatch(name) is None:
            raise LookupError(name)
        path = self._folder / name
        # A link may lead out of the folder.
        if path.is_symlink() or not path.is_file():
            raise LookupError(name)
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
        text = path.read_bytes()
        try:
            return cast("JsonValue", orjson.loads(text))
        except orjson.JSONDecodeError:
            lines = [line for line in text.splitlines() if line.strip()]
            return [cast("JsonValue", orjson.loads(line)) for line in lines]
