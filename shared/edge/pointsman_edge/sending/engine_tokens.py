"""Tokens that were counted for the choice, in the form for engines, so that these needn't count again (S1-26,
S1-27)."""

from array import array
from collections.abc import Sequence
from typing import Final, cast

import orjson
from pydantic import JsonValue

from pointsman_apis.api import Api
from pointsman_apis.completions import COMPLETIONS
from pointsman_contracts.content import PromptTokens
from pointsman_contracts.journey import BodyEdit, Target
from pointsman_core.config import Config
from pointsman_core.model_tokenizer import counts_alike

_BESIDE_THE_PROMPT: Final = frozenset((
    "model", "stream", "stream_options", "cache_salt", "user", "metadata", "priority", "nvext", "n", "best_of",
    "max_tokens", "max_completion_tokens", "min_tokens", "seed", "stop", "temperature", "top_p", "top_k", "min_p",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs", "top_logprobs",
))  # fmt: skip
"""Members of a body that the tokens don't depend on. Any other may be part of the prompt: then the engine counts
again."""


def token_ids(tokens: PromptTokens) -> list[int]:
    """The ids as numbers."""
    return array("I", tokens.ids).tolist()


def still_its_own(
    config: Config, target: Target, edits: Sequence[BodyEdit], tokens: PromptTokens | None
) -> PromptTokens | None:
    """The tokens, as long as they are what the target's engines would count: since then no stage has changed the prompt
    or chosen a model with another tokenizer. Providers' are never known."""
    if tokens is None or target.pool is None or not counts_alike(config, tokens.model, target.pool, target.model):
        return None
    return tokens if all(edit.field in _BESIDE_THE_PROMPT for edit in edits) else None


def token_edits(
    config: Config, target: Target, api: Api, body: bytes, edits: Sequence[BodyEdit], tokens: PromptTokens | None
) -> Sequence[BodyEdit]:
    """The edits of a body, and one that adds the tokens if the target's pool wants them. Providers never get tokens
    (S1-26)."""
    pool = config.pools.get(target.pool or "")
    if pool is None or pool.send_tokens == "no":
        return edits
    tokens = still_its_own(config, target, edits, tokens)
    if tokens is None:
        return edits
    if pool.send_tokens == "prompt":
        if api is not COMPLETIONS:
            return edits
        return [*edits, BodyEdit(field="prompt", value=cast("JsonValue", token_ids(tokens)))]
    if api.template not in ("chat", "text"):
        return edits
    given = cast("dict[str, object]", orjson.loads(body)).get("nvext") if b'"nvext"' in body else None
    for edit in edits:
        if edit.field == "nvext":
            given = edit.value
    nvext: dict[str, object] = {"token_data": token_ids(tokens)}
    if isinstance(given, dict):
        nvext = cast("dict[str, object]", given) | nvext
    return [*edits, BodyEdit(field="nvext", value=cast("JsonValue", nvext))]
