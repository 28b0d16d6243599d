"""The answers of the API server: pages of a list, and the lines of a watch.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from pointsman_metrics_collector.domain.kubernetes.collections import T, T_co
from pointsman_metrics_collector.domain.kubernetes.objects import ErrorStatus, KubeObject, Metadata

LONGEST_LINE: Final = 8 * 2**20
"""Bytes of one event. etcd takes objects of 1.5 MiB."""
FORBIDDEN: Final = 403
GONE: Final = 410


class Unreachable(Exception):
    """The API server doesn't answer, or the connection to it broke; the text has the reason."""


class UnreadableAnswer(Exception):
    """The answer doesn't follow the API; the text has the reason."""


class ListRefused(Exception):
    """The API server answers with an error."""

    def __init__(self, code: int, words: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"the API server answers {code}: {words}" if words else f"the API server answers {code}")
        self.code = code
        self.retry_after_s = retry_after_s


def gone(error: ListRefused | UnreadableAnswer) -> bool:
    """Whether the requested version is too old; only a new list helps."""
    return isinstance(error, UnreadableAnswer) or error.code == GONE


def advised(error: Unreachable | ListRefused | UnreadableAnswer) -> str:
    """The problem and its remedy."""
    if isinstance(error, ListRefused):
        if error.code == 401:
            return f"{error}; its token isn't accepted: expired, revoked, or of another cluster"
        if error.code == FORBIDDEN:
            return f"{error}; its service account needs the role in docs/kubernetes.md"
        if error.code == 404:
            return f"{error}; is its CustomResourceDefinition installed?"
        return str(error)
    return (
        f"the API server sent {error}"
        if isinstance(error, UnreadableAnswer)
        else f"the API server isn't reached: {error}"
    )


class ListPage(NamedTuple, Generic[T_co]):
    """A part of a list."""

    objects: tuple[T_co, ...]
    unreadable: tuple[str, ...]
    """Names of objects that don't match their kind."""
    version: str
    """Version of the list, from which a watch continues."""
    rest: str
    """Where the list goes on; empty at its end."""


class WatchEvent(NamedTuple, Generic[T_co]):
    """One event of a watch."""

    version: str
    """The version from which the watch continues after it."""
    name: str = ""
    """Empty for a bookmark, which has only a version."""
    object: T_co | None = None
    """None when it was deleted, or doesn't match its kind."""
    unreadable: bool = False


class _List(BaseModel):
    model_config = ConfigDict(extra="ignore")

    metadata: Metadata
    items: list[dict[str, JsonValue]] | None = None


class _Event(BaseModel):
    model_config = ConfigDict(extra="ignore")

    type: str
    object: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])


def read_page(kind: type[T], body: bytes) -> ListPage[T]:
    """Read a list. Raises UnreadableAnswer."""
    try:
        page = _List.model_validate_json(body)
    except ValidationError as error:
        raise UnreadableAnswer("a list that can't be parsed") from error
    if not page.metadata.resource_version:
        raise UnreadableAnswer("a list without a resourceVersion")
    objects: list[T] = []
    unreadable: list[str] = []
    for item in page.items or ():
        found = _object(kind, item)
        if isinstance(found, str):
            unreadable.append(found)
        else:
            objects.append(found)
    return ListPage(tuple(objects), tuple(unreadable), page.metadata.resource_version, page.metadata.continue_)


def read_change(kind: type[T], line: bytes) -> WatchEvent[T]:
    """Read one line of a watch. Raises Refused for an error event, UnreadableAnswer for any other line that is no
    event."""
    try:
        event = _Event.model_validate_json(line)
    except ValidationError as error:
        raise UnreadableAnswer("a line of the watch that isn't an event") from error
    if event.type == "ERROR":
        status = read_status(event.object)
        raise ListRefused(status.code, status.message or status.reason)
    try:
        metadata = KubeObject.model_validate(event.object).metadata
    except ValidationError as error:
        raise UnreadableAnswer("an event without an object") from error
    if not metadata.resource_version:
        raise UnreadableAnswer("an event without a resourceVersion")
    match event.type:
        case "BOOKMARK":
            return WatchEvent(metadata.resource_version)
        case "DELETED":
            return WatchEvent(metadata.resource_version, metadata.name)
        case "ADDED" | "MODIFIED":
            found = _object(kind, event.object)
            if isinstance(found, str):
                return WatchEvent(metadata.resource_version, metadata.name, unreadable=True)
            return WatchEvent(metadata.resource_version, metadata.name, found)
        case _:
            raise UnreadableAnswer(f"an event of the unknown type {event.type[:40]!r}")


def read_status(document: object) -> ErrorStatus:
    """The content of an error; empty when it isn't a Status."""
    try:
        return ErrorStatus.model_validate(document)
    except ValidationError:
        return ErrorStatus()


def read_status_body(body: bytes) -> ErrorStatus:
    """Like `read_status`, for an answer's body."""
    try:
        return ErrorStatus.model_validate_json(body)
    except ValidationError:
        return ErrorStatus()


class Lines:
    """Cuts a stream of bytes into its lines. A last line without its end is half an event, and never given."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def split_lines(self, data: bytes) -> Iterator[bytes]:
        """The lines that end in `data`. Raises UnreadableAnswer when one gets too long."""
        self._begun += data
        while (end := self._begun.find(b"\n")) >= 0:
            line = bytes(self._begun[:end])
            del self._begun[: end + 1]
            if line.strip():
                yield line
        if len(self._begun) > LONGEST_LINE:
            raise UnreadableAnswer(f"an event of more than {LONGEST_LINE} bytes")


def _object(kind: type[T], document: dict[str, JsonValue]) -> T | str:
    """The object, or the name of one that isn't of its kind."""
    try:
        return kind.model_validate(document)
    except ValidationError:
        metadata = document.get("metadata")
        name = cast("dict[str, JsonValue]", metadata).get("name") if isinstance(metadata, dict) else None
        return str(name)
