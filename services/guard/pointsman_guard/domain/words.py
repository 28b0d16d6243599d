"""Texts for clients and operators about the guard's actions. They never contain prompts or answers."""

from collections import Counter

from pointsman_guard.domain.policy import NOTHING, Judgement


def note(policy: str, judgement: Judgement) -> str:
    """For the trail, e.g. `default: redacted pii.card x2, flagged injection.marker`."""
    if judgement is NOTHING:
        return f"{policy}: passed"
    parts: list[str] = []
    if judgement.blocked is not None:
        parts.append(f"blocked {judgement.blocked.category}")
    for what, findings in (("redacted", judgement.redact), ("flagged", judgement.flagged)):
        counts = Counter(finding.category for finding in findings)
        named = (category if count == 1 else f"{category} x{count}" for category, count in counts.items())
        if counts:
            parts.append(f"{what} {', '.join(named)}")
    parts += [f"without {failure}" for failure in judgement.failures]
    return f"{policy}: {'; '.join(parts) or 'passed'}"[:512]


def prompt_blocked(policy: str, category: str) -> str:
    """For the client."""
    return f"The prompt was refused: the guard policy {policy!r} found {category} in it. Take it out and try again."


def answer_blocked(policy: str, category: str) -> str:
    """For the client."""
    return f"The answer was withheld: the guard policy {policy!r} found {category} in it."
