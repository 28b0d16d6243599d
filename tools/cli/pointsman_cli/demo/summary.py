"""The demo's measurements, as numbers and as text. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pointsman_cli.demo.client import ClientAnswer
from pointsman_cli.tables import borderless, numbers, unbroken
from pointsman_contracts.response import ResponseCompleted


class Measures:
    """Everything that came in, from the clients and from the bus."""

    def __init__(self) -> None:
        self.answers: list[ClientAnswer] = []
        self.decided_ms: list[float] = []
        """Milliseconds from receiving a request to knowing its endpoint, from `ResponseCompleted`."""
        self.served: Counter[str] = Counter()
        """Worker → answers."""
        self.cached: Counter[str] = Counter()
        self.prompts: Counter[str] = Counter()
        """Worker → prompt tokens; `cached` is the part that came from its KV cache."""

    def add_answer(self, answer: ClientAnswer) -> None:
        self.answers.append(answer)

    def add_completion(self, event: ResponseCompleted) -> None:
        """The gateway reported the end of a request."""
        if event.worker is None or event.outcome != "ok":
            return
        self.served[event.worker] += 1
        self.decided_ms.append(event.decided_ms)
        if event.usage is not None:
            self.prompts[event.worker] += event.usage.prompt_tokens
            self.cached[event.worker] += event.usage.cached_tokens

    @property
    def failed_answers(self) -> list[ClientAnswer]:
        """Answers with a problem."""
        return [answer for answer in self.answers if answer.problem]


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` of them don't exceed; NaN of none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summary(measures: Measures, seconds: float) -> RenderableType:
    """The end of the demo."""
    answers = measures.answers
    good = [answer for answer in answers if not answer.problem]
    failed = measures.failed_answers
    head = Text.assemble(
        (f"{len(answers)} requests in {seconds:.0f} s", "bold"),
        ", ",
        (f"{len(failed)} failed", "bold red") if failed else ("none failed", "green"),
        f"; {sum(answer.completion_tokens for answer in good) / max(seconds, 0.001):,.0f} tokens/s out",
    )
    parts: list[RenderableType] = [head, Text(), _latency(good), Text(), *_reuse(good), *_decisions(measures)]
    if failed:
        causes = Counter(f"{answer.status or 'no answer'}: {answer.problem}" for answer in failed)
        parts += [Text(f"  {count} × {cause}", "red") for cause, count in causes.most_common(5)]
    return Group(*parts)


def _latency(answers: Sequence[ClientAnswer]) -> Table:
    times = numbers("count", "first token p50", "p99", "whole answer p50", "p99")
    table = borderless(*unbroken("  requests"), *times)
    kinds = dict.fromkeys(answer.kind for answer in answers)
    for kind in (*kinds, *(["all"] if len(kinds) > 1 else [])):
        of_kind = [answer for answer in answers if kind in ("all", answer.kind)]
        first = [answer.first_token_s for answer in of_kind if answer.first_token_s is not None]
        whole = [answer.took_s for answer in of_kind]
        cells = [_ms(percentile(values, share)) for values in (first, whole) for share in (0.5, 0.99)]
        table.add_row(f"  {kind}", str(len(of_kind)), *cells, style="bold" if kind == "all" else "")
    return table


def _reuse(answers: Sequence[ClientAnswer]) -> list[Text]:
    prompt = sum(answer.prompt_tokens for answer in answers)
    cached = sum(answer.cached_tokens for answer in answers)
    if not prompt:
        return []
    return [
        Text.assemble(
            "  Cache reuse      ",
            (f"{cached / prompt:.0%}", "bold"),
            f" of {prompt:,} prompt tokens came from an engine's KV cache",
        )
    ]


def _decisions(measures: Measures) -> list[Text]:
    if not measures.decided_ms:
        return []
    p50, p99 = (percentile(measures.decided_ms, share) for share in (0.5, 0.99))
    shares = ", ".join(f"{worker} {count}" for worker, count in sorted(measures.served.items()))
    return [
        Text.assemble(
            "  Decisions        ",
            (f"{p50:.1f} ms", "bold"),
            f" from request to endpoint over the bus, p99 {p99:.1f} ms",
        ),
        Text(f"  Served by        {shares}"),
    ]


def _ms(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{seconds * 1000:,.0f} ms"
