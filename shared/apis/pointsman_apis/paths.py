"""Which API a path means, and the errors for paths and methods that the gateway doesn't take."""

import difflib
import re
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from pointsman_apis import APIS
from pointsman_apis.api import Api
from pointsman_apis.models import MODELS
from pointsman_apis.passthrough import OF_A_MODEL, UNKNOWN
from pointsman_core.refusal import Refusal

POOLS: Final = "/pools/"
"""Before the name of a pool and the path of an API that passes: `/pools/llama/generate`."""
_PARTS: Final = {"{id}": r"(?P<id>[\w.-]{1,128})", "{model}": "(?P<model>.{1,512}?)", "{version}": r"[\w.-]{1,128}"}
"""Part of an API's path that stands for others → its pattern."""
_HIDDEN: Final = (b"%2f", b"%5c")
"""An encoded slash and backslash: a proxy's rules about paths don't recognise them."""
_NAMES: Final = (b"/v1/models/", OF_A_MODEL.encode("ascii"))
"""A model's name follows, which clients encode."""
_LONGEST: Final = 512
"""Characters of a path that may mean an API."""


_ELSEWHERE: Final = (
    "/v1/uploads", "/v1/fine_tuning", "/v1/vector_stores", "/v1/assistants", "/v1/threads", "/v1/conversations",
    "/v1/containers", "/v1/evals", "/v1/realtime", "/v1/videos", "/v1/images/variations", "/v1/organization",
)  # fmt: skip
"""Paths of OpenAI's and Anthropic's APIs, with all below them, that no engine serves."""
_OF_BATCHES: Final = ("/v1/messages/batches", "/v1/files", "/v1/batches")


class Route(NamedTuple):
    """The meaning of a path."""

    api: Api
    path: str
    """The path at an engine."""
    pool: str | None = None
    response: str | None = None
    """The id of the response that the path names."""
    model: str | None = None

    @property
    def asked_path(self) -> str:
        """The path that a client asks for, in its shortest spelling."""
        return self.path if self.pool is None else f"{POOLS}{self.pool}{self.path}"


def _pattern(path: str) -> re.Pattern[str]:
    pattern = re.escape(path)
    for part, meaning in _PARTS.items():
        pattern = pattern.replace(re.escape(part), meaning)
    return re.compile(pattern, re.ASCII)


_EXACT: Final = {path: Route(api, path) for api in APIS for path in (api.path, *api.also) if "{" not in path}
_WITH_PARTS: Final = [(_pattern(path), api) for api in APIS for path in (*api.also, api.path) if "{" in path]
_SHOWN: Final = (*(api.path for api in APIS), MODELS)


class WrongMethod(Refusal):
    """405 that lists the right methods, in words and in the header `Allow` (RFC 9110 §15.5.6)."""

    def __init__(self, method: str, path: str, allowed: str) -> None:
        """`path` is the gateway's own, never a client's; `allowed` are methods, separated by commas."""
        super().__init__(405, f"{method} is not allowed on {path}; use {allowed}.", code="method_not_allowed")
        self.allowed = allowed


NOWHERE: Final = Route(UNKNOWN, "")
"""The route of a path without an API."""


def route_of(path: str) -> Route | None:
    """The API that a path (without its query) means; None when there is none. A slash at its end is ignored."""
    found = _EXACT.get(path)
    return _other(path) if found is None else found


def check_method(method: str, route: Route) -> None:
    """Raise WrongMethod for a method that the API doesn't take."""
    methods = route.api.methods
    if method not in methods:
        raise WrongMethod(method, route.api.path, ", ".join(methods))


def unknown_path(path: str) -> Refusal:
    """404 that lists the nearest paths and all others. It doesn't repeat the client's own: events have the message, and
    a path may hold anything."""
    known = next((each for each in (*_OF_BATCHES, *_ELSEWHERE) if path == each or path.startswith(f"{each}/")), None)
    near = difflib.get_close_matches(path[:100], _SHOWN, n=2)
    if known is not None:
        off = ": its service `batch` is off (docs/batches.md)" if known in _OF_BATCHES else ""
        problem = f"This gateway doesn't serve {known}{off}."
    else:
        problem = f"Unknown path. Did you mean {' or '.join(near)}?" if near else "Unknown path."
    return Refusal(404, f"{problem} Known paths: {', '.join(_SHOWN)}.", code="unknown_path")


def check_path(raw: bytes) -> None:
    """Raise Refusal for a path (as it was sent, without its query) that hides a slash."""
    if b"%" not in raw:
        return
    lower = raw.lower()
    if any(hidden in lower for hidden in _HIDDEN) and not raw.startswith(_NAMES):
        raise Refusal(400, "The path has an encoded slash; write `/` as it is.", code="invalid_path")


def _other(path: str) -> Route | None:
    if len(path) > _LONGEST:
        return None
    path = path.removesuffix("/")
    if path.startswith(POOLS):
        pool, _, rest = path[len(POOLS) :].partition("/")
        found = _EXACT.get(f"/{rest}")
        return found._replace(pool=pool) if found is not None and found.api.passed and pool else None
    found = _EXACT.get(path)
    if found is not None:
        return found
    for pattern, api in _WITH_PARTS:
        matched = pattern.fullmatch(path)
        if matched is not None:
            named = matched.groupdict()
            model = named.get("model")
            if model is None:
                return Route(api, path, response=named.get("id"))
            # As an engine gets it: a name may have a slash.
            begin, end = matched.span("model")
            model = unquote(model)
            return Route(api, f"{path[:begin]}{quote(model, safe='')}{path[end:]}", model=model)
    return None


def with_model(path: str, model: str) -> str:
    """The path with another model's name in the place of its own. The path begins as `OF_A_MODEL`."""
    route = route_of(path)
    if route is None or route.model is None:
        return path
    after = len(OF_A_MODEL) + len(quote(route.model, safe=""))
    return f"{OF_A_MODEL}{quote(model, safe='')}{route.path[after:]}"
