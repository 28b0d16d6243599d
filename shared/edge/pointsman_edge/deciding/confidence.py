"""Judges whether an answer of a cascade's model is good enough. Pure."""

from collections.abc import Iterator, Mapping
from typing import cast

from pointsman_apis.answer_signs import AnswerSigns, is_json
from pointsman_apis.api import Api
from pointsman_contracts.cascade import CONFIDENT, UNCONFIDENT, UNKNOWN, AnswerConfidence, ConfidenceRule

_JSON_FORMATS = frozenset({"json_object", "json_schema"})


def judge_answer(
    rule: ConfidenceRule, api: Api, asked: Mapping[str, object], signs: AnswerSigns, *, whole: bool = True
) -> AnswerConfidence:
    """The judgement. `asked`: the members of the request's body; `whole`: nothing of the answer follows."""
    mean, low = signs.mean_logprob, signs.low_logprob
    if signs.failed:
        return AnswerConfidence(verdict=UNCONFIDENT, why="the answer is an error, or can't be read")
    why = next(_objections(rule, api, asked, signs, whole=whole), None)
    verdict = CONFIDENT if why is None else UNCONFIDENT
    if why is None and rule.reads_logprobs and mean is None:
        verdict, why = UNKNOWN, "no log probabilities came"
    return AnswerConfidence(verdict=verdict, why=why or "", mean_logprob=_rounded(mean), low_logprob=_rounded(low))


def _objections(
    rule: ConfidenceRule, api: Api, asked: Mapping[str, object], signs: AnswerSigns, *, whole: bool
) -> Iterator[str]:
    texts = signs.texts
    if rule.refusal and signs.refused:
        yield "marked as refused"
    if rule.phrases and any(_begins_with_any(text, rule.phrases) for text in texts):
        yield "begins with a phrase of refusals"
    limited = any(asked.get(name) is not None for name in api.output_limits)
    if signs.at_limit and (rule.length == "always" or (rule.length == "unlimited" and not limited)):
        yield "ended at a limit of tokens"
    if whole and not signs.calls_tools and not any(text.strip() for text in texts):
        # Models that think up to the limit end so, too.
        yield "no text"
    if whole and rule.form and not signs.at_limit:
        if _asks_json(asked) and not signs.calls_tools and not all(map(is_json, texts)):
            yield "not the JSON that was asked for"
        if not all(is_json("".join(pieces)) for pieces in signs.arguments.values() if any(pieces)):
            yield "arguments of a tool aren't JSON"
    mean, low = signs.mean_logprob, signs.low_logprob
    if rule.mean_logprob is not None and mean is not None and mean < rule.mean_logprob:
        yield f"mean log probability {mean:.2f}, least {rule.mean_logprob:g}"
    if rule.low_logprob is not None and low is not None and low < rule.low_logprob:
        yield f"log probability of the lowest tenth {low:.2f}, least {rule.low_logprob:g}"


def _begins_with_any(text: str, phrases: tuple[str, ...]) -> bool:
    # Models write either apostrophe.
    begun = text.lstrip()[:400].casefold().replace("\u2019", "'")
    return any(begun.startswith(phrase.casefold().replace("\u2019", "'")) for phrase in phrases)


def _asks_json(asked: Mapping[str, object]) -> bool:
    form = asked.get("response_format")
    if form is None:
        text = asked.get("text")
        form = cast("Mapping[str, object]", text).get("format") if isinstance(text, dict) else None
    return isinstance(form, dict) and cast("Mapping[str, object]", form).get("type") in _JSON_FORMATS


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
