"""The expressions of rules: CEL over facts of a request and of the pools, with header names in any case."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Final, cast

from cel_expr_python import cel
from pydantic import JsonValue

from pointsman_contracts.identity import IDENTITY
from pointsman_contracts.journey import Journey
from pointsman_core.plugins import unknown
from pointsman_plugins.picking import POOL_FACTS

_STRING: Final = r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
_NAMED: Final = re.compile(
    rf"(?P<key>\bheaders\s*\[\s*{_STRING}\s*\])"
    rf"|(?P<member>{_STRING}\s*in\s+headers\b)"
    r"|(?P<field>\bheaders\s*\.\s*[A-Za-z_]\w*\b(?!\s*\())"
    rf"|{_STRING}"
)
"""Other strings are matched whole, so that nothing inside them is taken for a header."""


def with_lower_headers(text: str) -> str:
    """The expression with the headers that it names in lower case; every other text in it stays."""

    def lower(match: re.Match[str]) -> str:
        return match[0].lower() if match.lastgroup else match[0]

    return _NAMED.sub(lower, text)


_T = cel.Type
_TEXTS: Final = _T.Map(_T.STRING, _T.STRING)
_VALUES: Final = _T.Map(_T.STRING, _T.DYN)
_POOLS: Final = _T.Map(_T.STRING, _T.Map(_T.STRING, _T.DOUBLE))

FACTS: Final[Mapping[str, tuple[cel.Type, Callable[[Journey], object]]]] = {
    "model": (_T.STRING, attrgetter("wanted")),
    "api": (_T.STRING, attrgetter("request.api")),
    "path": (_T.STRING, attrgetter("request.path")),
    "headers": (_TEXTS, attrgetter("request.headers")),
    "fields": (_VALUES, attrgetter("request.fields")),
    "attributes": (_VALUES, attrgetter("request.attributes")),
    "identity": (_VALUES, lambda journey: journey.request.attributes.get(IDENTITY) or {}),
    "features": (_T.List(_T.STRING), lambda journey: list(journey.request.features)),
    "session": (_T.STRING, lambda journey: journey.request.session or ""),
    "stream": (_T.BOOL, attrgetter("request.stream")),
    "priority": (_T.INT, attrgetter("request.priority")),
    "prompt_tokens": (_T.INT, attrgetter("request.prompt_tokens")),
    "max_output_tokens": (_T.INT, lambda journey: journey.request.max_output_tokens or 0),
    "body_bytes": (_T.INT, attrgetter("request.body_bytes")),
}
"""Facts of a request: their types in CEL, and how they are read."""
VARIABLES: Final = (*FACTS, "pools")
"""The names that an expression may read."""

_IN_QUOTES: Final = r"""(?:"([^"]*)"|'([^']*)')"""
_POOL_NAME: Final = re.compile(rf"\bpools\s*(?:\[\s*{_IN_QUOTES}\s*\]|\.\s*([A-Za-z_]\w*))")
_POOL_FACT: Final = re.compile(
    rf"""\bpools\s*(?:\[[^\]]*\]|\.\s*\w+)\s*(?:\.\s*([A-Za-z_]\w*)|\[\s*{_IN_QUOTES}\s*\])"""
)
_PLACE: Final = re.compile(r"<input>:\d+:(\d+): ([^\n]*)")
_ABSENT: Final = "NOT_FOUND"

_MACROS: Final = frozenset({"all", "exists", "exists_one", "filter", "map", "size"})


class ExpressionError(ValueError):
    """An expression is invalid; the text names the problem and its place."""


class EvaluationError(Exception):
    """An expression failed at a request, e.g. because the types of its operands don't match."""


class RuleEnvironment:
    """The environment of one configuration revision: knows the pools, compiles, and binds requests."""

    def __init__(self, pools: Iterable[str]) -> None:
        self.pools: Final = tuple(pools)
        self._used: set[str] = set()
        types = {name: kind for name, (kind, _) in FACTS.items()}
        self._environment: Final = cel.NewEnv(variables={**types, "pools": _POOLS})

    def compile_condition(self, text: str) -> cel.Expression:
        """Parsed and type-checked. Raises ExpressionError."""
        return self._compile(text, "a condition must be true or false", _T.BOOL)

    def compile_score(self, text: str) -> cel.Expression:
        """A number, parsed and type-checked. Raises ExpressionError."""
        return self._compile(text, "a score must be a number", _T.DOUBLE, _T.INT, _T.UINT)

    def _compile(self, text: str, words: str, *types: cel.Type) -> cel.Expression:
        try:
            text.encode()
            expression = self._environment.compile(with_lower_headers(text))
        except UnicodeEncodeError:
            raise ExpressionError("it contains half of a surrogate pair, which isn't valid Unicode") from None
        except RuntimeError as error:
            raise ExpressionError(_explain(str(error))) from None
        returned = expression.return_type()
        if returned not in (*types, _T.DYN):
            raise ExpressionError(f"{words}; this expression is of type {returned.name()}")
        self._check_pools(text)
        self._used |= {name for name in VARIABLES if re.search(rf"\b{name}\b", text)}
        return expression

    @property
    def reads_pools(self) -> bool:
        """Whether an expression compiled so far reads the state of pools."""
        return "pools" in self._used

    def make_activation(
        self, journey: Journey, pools: Callable[[], Mapping[str, Mapping[str, float]]]
    ) -> cel.Activation:
        """The request as the compiled expressions see it; only the variables that they read."""
        values: dict[str, object] = {name: FACTS[name][1](journey) for name in self._used if name != "pools"}
        if "pools" in self._used:
            values["pools"] = pools()
        return self._environment.Activation(values)

    def _check_pools(self, text: str) -> None:
        for match in _POOL_NAME.finditer(text):
            name = next((group for group in match.groups() if group is not None), "")
            if name not in self.pools and not (match[3] and name in _MACROS):
                raise ExpressionError(unknown("pool", name, self.pools))
        for match in _POOL_FACT.finditer(text):
            fact = next((group for group in match.groups() if group is not None), "")
            if fact not in POOL_FACTS:
                raise ExpressionError(unknown("fact of a pool", fact, POOL_FACTS))


def holds(expression: cel.Expression, request: cel.Activation) -> bool:
    """Whether the condition is true. A condition that reads a missing header, field or attribute is false.

    Raises EvaluationError for every other failure, and for a value that is neither true nor false.
    """
    value = expression.eval(request).value()
    if value is True or value is False:
        return value
    # Anything else is rare: it is looked at again.
    if _value(expression, request) is None:
        return False
    raise EvaluationError("the condition is neither true nor false")


def measure(expression: cel.Expression, request: cel.Activation) -> float:
    """The score, within [0,1]. An expression that reads a missing header, field or attribute scores 0.

    Raises EvaluationError for every other failure, and for a value that is no number.
    """
    value = _value(expression, request)
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise EvaluationError("the score isn't a number")
    return min(1.0, max(0.0, float(value)))


def _value(expression: cel.Expression, request: cel.Activation) -> JsonValue:
    """The value; None for an expression that reads a missing header, field or attribute."""
    result = expression.eval(request)
    value = cast("JsonValue", result.value())
    if result.type() != _T.ERROR:
        return value
    kind = str(value).partition(":")[0]
    if kind == _ABSENT:
        return None
    raise EvaluationError(kind)


_ASSIGNMENT: Final = re.compile(r"token recognition error at: '=[^=]?'$")


def _right_form(text: str) -> str:
    """The right form of a text that CEL's parser rejects."""
    if _ASSIGNMENT.search(text):
        return "write == to compare"
    if "mismatched input 'and'" in text or "mismatched input 'or'" in text:
        return "write && for and, || for or"
    if "'<EOF>' expecting {" in text:
        return "the expression ends where a value is needed"
    return """write e.g. model == "auto" && headers["x-priority"] == "high\""""


def _explain(problem: str) -> str:
    """CEL's message in one line, with the column and the remedy."""
    match = _PLACE.search(problem)
    if match is None:
        return problem.splitlines()[0]
    text = match[2]
    hint = ""
    if "'(double, int)'" in text or "'(int, double)'" in text:
        hint = "; compare with a number of the same kind, e.g. 1.0 instead of 1"
    elif text.startswith("undeclared reference to"):
        name = text.split("'")[1]
        hint = f"; {unknown('name', name, VARIABLES)}"
    elif text.startswith("Syntax error"):
        hint = f"; {_right_form(text)}"
        text = text.partition(" expecting {")[0]
    return f"column {match[1]}: {text}{hint}"
