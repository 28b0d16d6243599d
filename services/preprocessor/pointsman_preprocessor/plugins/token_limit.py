"""`token-limit`: so many tokens in so much time, reserved before a request runs and settled by what it used."""

from collections.abc import Mapping
from contextlib import suppress
from math import ceil
from typing import Annotated, Final, Literal, cast

from pydantic import AfterValidator, Field, JsonValue

from pointsman_contracts.limits import LimitWindow
from pointsman_contracts.response import Usage
from pointsman_core.plugins import Params, Plugin
from pointsman_preprocessor.domain.facts import answers, max_output_tokens
from pointsman_preprocessor.domain.limits.rate import Rate, Rates
from pointsman_preprocessor.domain.limits.token_cost import TokenCost
from pointsman_preprocessor.domain.processing import Incoming
from pointsman_preprocessor.plugins.limit import Limit, LimitParams
from pointsman_preprocessor.plugins.request_limit import amounts

UNKNOWN_LENGTH: Final = 1024
"""Tokens of an answer that are reserved while nobody knows better."""
LARGEST_PART: Final = 0.5
"""Of the smallest window that one request reserves at most: larger ones would wait for an empty window (Kuadrant RFC
0021, `max_fraction`). What it uses beyond is debt."""


def _compiles(text: str) -> str:
    TokenCost(text)
    return text


class TokenLimitParams(LimitParams):
    """How many tokens."""

    amount: Rates
    """An amount per time, or several that all count: `200k/min`, `[200k/min, 5M/d]`."""
    charging: Literal["reserve", "reactive"] = "reserve"
    """`reserve`: what a request will probably cost is counted before it runs, and corrected when it has ended.
    `reactive`: what it cost is counted when it has ended, and refuses later ones (S3-7)."""
    cost: Annotated[str, AfterValidator(_compiles)] | None = None
    """What a request costs, in CEL over `input_tokens`, `output_tokens`, `total_tokens`, `cached_tokens`,
    `reasoning_tokens` (numbers with a point) and `model`; default `total_tokens`."""
    expected_output: int | None = Field(default=None, ge=0)
    """Tokens of output to reserve for each answer (`n`, or `best_of`, to a prompt), at most the request's own limit;
    default: what 95 % of the model's answers didn't exceed lately."""


class TokenLimit(Limit):
    """Tokens of what was used lately, and of what runs."""

    type_name = "token-limit"
    params_type = TokenLimitParams

    def __init__(self, name: str, params: Params, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        limit = cast("TokenLimitParams", params)
        self._amounts = limit.amount
        self._reactive = limit.charging == "reactive"
        self._expected_output = limit.expected_output
        self._windows_configured = tuple(_window(each) for each in limit.amount)
        self.price = TokenCost(limit.cost)
        """What used tokens cost."""

    @property
    def windows(self) -> tuple[LimitWindow, ...]:
        return self._windows_configured

    @property
    def reactive(self) -> bool:
        return self._reactive

    def claimed(self, value: JsonValue) -> tuple[LimitWindow, ...]:
        return tuple(_window(each) for each in amounts(value, self._amounts))

    def cost(self, incoming: Incoming, windows: tuple[LimitWindow, ...]) -> float:
        if self._reactive:
            return 0.0
        prompt, output = incoming.prompt.tokens, self._output(incoming)
        tokens = float(prompt + output)
        if self.price.weighs:
            with suppress(ArithmeticError):
                tokens = self.price(Usage(prompt_tokens=prompt, completion_tokens=output), incoming.model)
        return min(float(ceil(tokens)), LARGEST_PART * min([window.amount for window in windows]))

    def _output(self, incoming: Incoming) -> int:
        most = max_output_tokens(incoming.body)
        if self._expected_output is not None:
            expected = self._expected_output
        else:
            expected = self._limiter.lengths.expected(incoming.model) or UNKNOWN_LENGTH
        return (expected if most is None else min(most, expected)) * answers(incoming.body)


def _window(each: Rate) -> LimitWindow:
    return LimitWindow(unit="tokens", amount=each.amount, period_s=each.period_s)
