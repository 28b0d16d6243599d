"""How a request ended, line by line: attempts, stages on the way back, usage, cost. Pure."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from pointsman_contracts.cascade import AnswerConfidence
from pointsman_contracts.journey import StageReport
from pointsman_contracts.money import dollars
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_core.service_level import between_tokens_ms, level_result


def outcome(event: ResponseCompleted) -> list[RenderableType]:
    """The lines below the event's own line."""
    lines = [_who(event), _promised(event), _used(event)]
    parts: list[RenderableType] = [Text(f"  {line}", "dim") for line in lines if line]
    if event.confidence is not None or event.unused:
        parts.append(_cascade(event))
    if event.legs:
        parts.append(_legs(event))
    if event.attempts:
        parts.append(_attempts(event))
    if event.seams or event.unresumed:
        parts.append(_seams(event))
    if event.stages:
        parts.append(stages(event.stages))
    return parts


def spelled_time(milliseconds: float) -> str:
    """A time in the unit in which it can be read: processors take microseconds."""
    return f"{milliseconds * 1e3:.0f} µs" if 0 < milliseconds < 0.1 else f"{milliseconds:.1f} ms"


def stages(reports: Sequence[StageReport]) -> Table:
    """The verdicts of stages on the way back."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for report in reports:
        took = spelled_time(report.took_ms)
        table.add_row(f"    {report.stage}", report.outcome, took, report.note or "", report.instance)
    return table


def _who(event: ResponseCompleted) -> str:
    identity = event.identity
    parts = [] if identity is None else [identity.tenant, identity.subject, identity.plan]
    client = " / ".join(part for part in parts if part)
    facts = [f"client {client}" if client else "", event.api, "streamed" if event.stream else "", event.level]
    times = [f"decided after {event.decided_ms:.1f} ms", f"ended after {event.duration_ms:.0f} ms"]
    if event.ttft_ms is not None:
        times.insert(1, f"first byte after {event.ttft_ms:.1f} ms")
    return " · ".join([part for part in facts if part] + times)


def _promised(event: ResponseCompleted) -> str:
    promise = event.promise
    if promise is None:
        return ""
    level = f"service level {promise.service_class}: " if promise.service_class else ""
    told = [] if promise.ttft_ms is None else [f"{promise.ttft_ms:.0f} ms to the first token"]
    if promise.itl_ms is not None:
        told.append(f"{promise.itl_ms:g} ms between tokens")
    promised, result = f"{level}promised {', '.join(told)}", level_result(event)
    if result == "refused":
        return f"{promised} · refused"
    predicted = "unknown" if promise.predicted_ttft_ms is None else f"{promise.predicted_ttft_ms:.0f} ms"
    got = "no first token" if event.ttft_ms is None else f"{event.ttft_ms:.0f} ms"
    if promise.itl_ms is not None:
        predicted += f" and {_apart(promise.predicted_itl_ms)}"
        longest = between_tokens_ms(event, at_most=True)
        got += f" and {_apart(between_tokens_ms(event)) if longest is None else f'at most {longest:.3g} ms'}"
    spilled = f" · spilled from pool {promise.spilled_from}" if promise.spilled_from else ""
    return f"{promised} · predicted {predicted} · got {got} · {result}{spilled}"


def _apart(between_ms: float | None) -> str:
    return "unknown" if between_ms is None else f"{between_ms:.3g} ms"


def _used(event: ResponseCompleted) -> str:
    usage = event.usage
    if usage is None:
        return ""
    reasoning = f" ({usage.reasoning_tokens:,} of them reasoning)" if usage.reasoning_tokens else ""
    words = (
        f"{usage.prompt_tokens:,} prompt tokens ({cached(usage)} cached), "
        f"{usage.completion_tokens:,} completion tokens{reasoning}"
    )
    model = f"{event.served or '-'}, estimated" if usage.estimated else event.served or "-"
    cost = "no price" if event.cost_nanos is None else f"${dollars(event.cost_nanos)}"
    return f"used {words} of {model} · {cost}"


def cached(usage: Usage) -> str:
    """Prompt tokens that came from a cache, or that nothing was reported of them."""
    return "unknown" if usage.cached_unknown else f"{usage.cached_tokens:,}"


def _cascade(event: ResponseCompleted) -> Table:
    """The answers of a cascade's models: those that the client didn't get, then its own, and the cost of all."""
    table = Table.grid(padding=(0, 2, 0, 0))
    unused = event.unused or ()
    costs = [each.cost_nanos for each in unused]
    for each in unused:
        model, took = each.served or each.target.model, f"{each.took_ms:.0f} ms"
        table.add_row("    not given", model, _judged(each.judged), took, _spent(each.usage, each.cost_nanos))
    if event.confidence is not None:
        spent = _spent(event.usage, event.cost_nanos)
        table.add_row("    given", event.served or "-", _judged(event.confidence), "", spent)
    if costs:
        known = [cost for cost in (*costs, event.cost_nanos) if cost is not None]
        table.add_row("    charged", "", "", "", f"${dollars(sum(known))} in all" if known else "no price")
    return table


def _judged(judged: AnswerConfidence) -> str:
    return f"{judged.verdict}: {judged.why}" if judged.why else judged.verdict


def _spent(usage: Usage | None, cost_nanos: int | None) -> str:
    if usage is None:
        return "no usage known"
    cost = "no price" if cost_nanos is None else f"${dollars(cost_nanos)}"
    return f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens · {cost}"


def _legs(event: ResponseCompleted) -> Table:
    """The parts of the work that other engines did, before the attempts of those that answer."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for leg in event.legs:
        status = "" if leg.status is None else str(leg.status)
        took = f"{leg.took_ms:.0f} ms"
        table.add_row(
            f"    {leg.leg}", leg.worker, leg.outcome, status, took, f"after {leg.began_ms:.0f} ms", leg.reason
        )
    return table


def _seams(event: ResponseCompleted) -> Table:
    """When the stream broke off, and who continued it."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for seam in event.seams:
        table.add_row(
            f"    after {seam.at_ms:.0f} ms",
            f"{seam.worker} broke off",
            f"{seam.next_worker} continued after {seam.gap_ms:.0f} ms",
            f"{seam.kept_tokens:,} tokens kept ({seam.form})",
            f"{seam.computed_again:,} computed again",
        )
    if event.unresumed:
        table.add_row("    not continued", event.unresumed)
    return table


def _attempts(event: ResponseCompleted) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for number, attempt in enumerate(event.attempts, start=1):
        model = attempt.target.model if attempt.target is not None else ""
        status = "" if attempt.status is None else str(attempt.status)
        took = f"{attempt.took_ms:.0f} ms"
        table.add_row(f"    attempt {number}", attempt.worker, attempt.outcome, status, took, model, attempt.reason)
    return table
