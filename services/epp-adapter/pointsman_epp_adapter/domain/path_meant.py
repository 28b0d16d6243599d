"""What a path may mean to an engine, whatever its spelling."""

import posixpath
from typing import Final
from urllib.parse import unquote

_DECODED: Final = 3
"""Times: Envoy, a proxy behind it and the engine may each do it."""


def path_meant(path: str) -> str:
    """The shortest spelling: decoded, in lower case, with one slash between segments and none at the end, without
    `.` and `..`."""
    for _ in range(_DECODED):
        path = unquote(path)
    return posixpath.normpath("/" + path.replace("\\", "/").lstrip("/")).lower()
