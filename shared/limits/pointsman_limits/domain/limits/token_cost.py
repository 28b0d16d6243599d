"""The cost of a request in tokens, as weighted by a CEL expression."""

import math
from functools import cache
from typing import Final

from cel_expr_python import cel

from pointsman_contracts.response import Usage

_T = cel.Type
_NUMBERS: Final = ("input_tokens", "output_tokens", "total_tokens", "cached_tokens", "reasoning_tokens")


@cache
def _environment() -> cel.Env:
    return cel.NewEnv(variables={**dict.fromkeys(_NUMBERS, _T.DOUBLE), "model": _T.STRING})


class TokenCost:
    """`cost(usage, model)`; without an expression the sum of prompt and completion."""

    def __init__(self, text: str | None = None) -> None:
        """Raises ValueError that names the error in the expression."""
        self._expression: Final = None if text is None else _compiled(text)

    @property
    def is_weighted(self) -> bool:
        """Whether the cost differs from the plain sum."""
        return self._expression is not None

    def __call__(self, usage: Usage, model: str) -> float:
        """The cost, 0 or more. Raises ArithmeticError when the expression has no such value for this usage."""
        total = usage.prompt_tokens + usage.completion_tokens
        if self._expression is None:
            return float(total)
        values: dict[str, object] = {
            "input_tokens": float(usage.prompt_tokens),
            "output_tokens": float(usage.completion_tokens),
            "total_tokens": float(total),
            "cached_tokens": float(usage.cached_tokens),
            "reasoning_tokens": float(usage.reasoning_tokens),
            "model": model,
        }
        result = self._expression.eval(_environment().Activation(values))
        value = result.value()
        if result.type() == _T.ERROR or isinstance(value, bool) or not isinstance(value, int | float):
            raise ArithmeticError("the cost is no number")
        if not math.isfinite(value):
            raise ArithmeticError("the cost isn't finite")
        if value < 0:
            raise ArithmeticError("the cost is negative")
        return float(value)


def _compiled(text: str) -> cel.Expression:
    try:
        text.encode()
        expression = _environment().compile(text)
    except UnicodeEncodeError:
        raise ValueError("it contains half of a surrogate pair, which is no text") from None
    except RuntimeError as error:
        words = str(error).partition("\n")[0].rpartition(": ")[2]
        known = ", ".join((*_NUMBERS, "model"))
        raise ValueError(f"{words}; it may read {known}, which are numbers with a point: write 4.0, not 4") from None
    if expression.return_type() not in (_T.DOUBLE, _T.INT, _T.UINT):
        raise ValueError(f"a cost is a number; this is of type {expression.return_type().name()}")
    return expression
