"""Handles the findings in an answer's texts."""

from collections.abc import Callable, Mapping, Sequence

from pointsman_contracts.response_stage import ResponseReview
from pointsman_guard.domain.policy import GuardPolicy, Judgement
from pointsman_guard.domain.redaction import is_own, removed, restored, without_leftovers
from pointsman_plugins.guarding import CheckedText, Finding


def ours(
    texts: Sequence[CheckedText], originals: Mapping[str, str], *, first: bool
) -> Callable[[Finding], bool] | None:
    """A predicate for findings that are the client's own text; None without originals."""
    if not originals:
        return None
    return lambda finding: (
        finding.at is not None
        and finding.located
        and is_own(texts[finding.at].text, finding, originals.values(), first=first)
    )


def changed_texts(
    policy: GuardPolicy, review: ResponseReview, judgement: Judgement, originals: Mapping[str, str]
) -> dict[str, str]:
    """The changed texts for the client, by part."""
    edits: dict[str, str] = {}
    for index, shown in enumerate(review.texts):
        findings = [finding for finding in judgement.redact if finding.at == index]
        text = removed(shown.text, findings, in_json=shown.kind == "arguments") if findings else shown.text
        if review.number > 1 and "[" in text:
            text = without_leftovers(text, policy.removable_categories)
        if originals:
            text = restored(text, originals, in_json=shown.kind == "arguments")
        if text != shown.text:
            edits[shown.part] = text
    return edits
