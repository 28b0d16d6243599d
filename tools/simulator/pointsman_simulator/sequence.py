"""A request as the engine keeps it."""

import math


class Sequence:
    """One request inside an engine."""

    __slots__ = (
        "aborted",
        "arrived_at",
        "blocks",
        "cached_tokens",
        "carried",
        "computed",
        "finished_at",
        "first_token_at",
        "full_blocks",
        "generated",
        "has_partial",
        "last_token_at",
        "lora",
        "model",
        "output_tokens",
        "prompt_tokens",
        "request_id",
        "scheduled_at",
    )

    def __init__(
        self,
        request_id: int | str,
        prompt_tokens: int,
        output_tokens: int,
        blocks: list[int],
        lora: str | None = None,
        model: str = "",
    ) -> None:
        """`blocks` names the leading full blocks (ints >= 0, equal only for equal prefixes), at least the prompt's;
        further output blocks get names that match no others. Both token counts are at least 1. `model`: the base model,
        where an engine serves several.
        """
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.blocks = blocks
        self.lora = lora
        self.model = model
        self.cached_tokens = 0
        self.carried = False
        """Whether another engine has computed the prompt, whose KV cache comes with the request."""
        self.computed = 0
        self.generated = 0
        self.full_blocks = 0
        self.has_partial = False
        self.aborted = False
        self.arrived_at = math.nan
        self.scheduled_at = math.nan
        self.first_token_at = math.nan
        self.last_token_at = math.nan
        self.finished_at = math.nan

    @property
    def decoding(self) -> bool:
        return (self.generated > 0 or self.carried) and self.prompt_tokens + self.generated - self.computed == 1
