"""Tokens that were counted for the choice, as an engine takes them: it then needn't count them again (S1-26, S1-27)."""

from array import array
from collections.abc import Sequence
from typing import Final, cast

import orjson
from pydantic import JsonValue

from pointsman_contracts.content import PromptTokens
from pointsman_contracts.journey import BodyEdit, Target
from pointsman_core.config import Config

_NVEXT_APIS: Final = ("chat.completions", "completions")


def token_ids(tokens: PromptTokens) -> list[int]:
    """As numbers."""
    return array("I", tokens.ids).tolist()


def token_edits(
    config: Config, target: Target, api: str, body: bytes, edits: Sequence[BodyEdit], tokens: PromptTokens | None
) -> Sequence[BodyEdit]:
    """The edits of a body, and what brings the tokens along when the pool of the target wants them. Providers never
    get any (S1-26)."""
    pool = config.pools.get(target.pool or "")
    if tokens is None or pool is None or pool.send_tokens == "no":
        return edits
    if pool.send_tokens == "prompt":
        if api != "completions":
            return edits
        return [*edits, BodyEdit(field="prompt", value=cast("JsonValue", token_ids(tokens)))]
    if api not in _NVEXT_APIS:
        return edits
    given = cast("dict[str, object]", orjson.loads(body)).get("nvext") if b'"nvext"' in body else None
    nvext: dict[str, object] = {"token_data": token_ids(tokens)}
    if isinstance(given, dict):
        nvext = cast("dict[str, object]", given) | nvext
    return [*edits, BodyEdit(field="nvext", value=cast("JsonValue", nvext))]
