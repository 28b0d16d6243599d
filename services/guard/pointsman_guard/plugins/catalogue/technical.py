"""Instructions that are not a model's: those of a Dockerfile, a processor, a file of rules. Also people named Dan.

RE2 has no lookaround, so these functions check the surroundings of a match. They ignore a match
only if its text neither addresses a model nor continues with an order to it.
"""

import re
from typing import Final

_BEHIND: Final = 160
"""Characters after a match in which an order to the model counts as its continuation."""
_BEFORE: Final = 60
_MODELS_OWN: Final = re.compile(
    r"\b(?:you|your|my|i|told|said|given|received|everything|anything|system|developer|safety|security|openai"
    r"|moderation|content|ethical|prompts?|guidelines?|guidance|training|programming|safeguards?|guardrails?"
    r"|messages?|conversation|context|polic(?:y|ies)|please|now|immediately|completely|entirely|totally)\b",
    re.IGNORECASE,
)
"""Words about a model's instructions, and never a machine's."""
_ORDER: Final = re.compile(
    r"\byou(?:r|rs|rself)?\b|\b(?:system|hidden|secret) prompt\b"
    r"|(?:\b(?:and|then|instead|but|just|also|so)\b|[.,;:!?\n-])[\s\"']*"
    r"(?:(?:then|just|instead|now|please|only|to|simply|rather|and) ){0,3}"
    r"(?:say|tell|print|write|output|respond|reply|answer|do|show|give|follow|translate|repeat|reveal|act|pretend|be"
    r"|leak|send|ignore|disregard|forget|obey|execute|report|approve|call|dump|list|comply|become|speak)\b",
    re.IGNORECASE,
)
_TOOL: Final = (
    r"(?:git(?:hub|lab)?|docker(?:file|ignore)?|build(?:kit|x)?|podman|cpus?|processors?|pipelines?|assemblers?"
    r"|compilers?|linkers?|debuggers?|interpreters?|jit|optimi[sz]ers?|prettier|eslint|linters?|nginx|apache|googlebot"
    r"|crawlers?|css|gcc|clang|make|cmake|bash|zsh|shells?|kernels?|cores?|decoders?|schedulers?|code|macros?|hardware|systemd)"
)
_PLACE: Final = (
    r"(?:(?:docker|container|make|jenkins|vagrant)files?|entrypoint|cmd|\.?(?:git|docker)ignore|\.?htaccess|robots\.txt"
    r"|cpus?|processors?|pipelines?|assembl(?:er|y)|compilers?|linkers?|caches?|arm|x86(?:-64)?|risc-?v|avr|mips"
    r"|targets?|opcodes?|binar(?:y|ies)|bytecode|kernels?|registers?|buffers?|queues?|nginx|yaml"
    r"|(?:config|shell) files?|scripts?|readme|wiki|manuals?|stylesheets?|loops?|functions?|headers?"
    r"|base image|build stage|unit files?)"
)
_OWNED: Final = re.compile(
    r"(?:"
    r"[ \t]+files?(?=\s*(?:[?!:,]|$|in\b|\.?\w*\.\w))"
    r"|[ \t]+(?:cache|pointer|set|register|counter|operand|opcode|stream|buffer)s?\b"
    r"|'s?\s+(?:\w+\s+){0,2}(?:operands?|operators?|size|length|opcodes?|encoding|prefix|address|arguments?|result)\b"
    r"|[ \t]+with the same\b|[ \t]+(?:in|of|from|inside|within)\s+(?:(?:the|a|an|this|that|our|its)\s+)?"
    rf"(?:[\w.-]+\s+){{0,2}}?{_PLACE}\b"
    r"|[ \t]+(?:#\s*(?:pragma|define|include)|@\w+|\.\w+)"
    r")",
    re.IGNORECASE,
)
"""Directly after the match: the owner of the instructions."""
_DONE_BY: Final = re.compile(
    r"\b(?:make|makes|made|let|lets|get|gets|have|has|tell|does|do|did|can|will|would|could|should|may|must|why|when"
    rf"|how|which|that|a|the)\s+(?:(?:a|an|the|to|does|do|did|can|will)\s+){{0,2}}(?:[\w.-]+\s+)??{_TOOL}"
    r"(?:\s+(?:flush|rules?|macros?|core|process|build|always|only|then|that|may|can|will|to)){0,3}\s+$",
    re.IGNORECASE,
)
"""Directly before the match: a machine that ignores them, and not a reader."""
_SOMEBODY: Final = re.compile(r"'s\s+[a-z]|\s+[A-Z][a-z]+")
_FREED: Final = re.compile(
    r"\b(?:anything|no (?:rules?|limits?|restrictions?|filters?)|without|unrestricted|unfiltered|uncensored|mode|jailbr"
    r"|ignor|never refuse|always answer|free)",
    re.IGNORECASE,
)


def of_a_machine(text: str, start: int, end: int) -> bool:
    """Whether the match is about the instructions of a file, a tool or a processor."""
    if _MODELS_OWN.search(text, start, end):
        return False
    owned = _OWNED.match(text, end)
    if owned is not None and _MODELS_OWN.search(owned[0]):
        return False
    if owned is None and not _DONE_BY.search(text[max(0, start - _BEFORE) : start]):
        return False
    behind = end if owned is None else owned.end()
    return not _ORDER.search(text, behind, behind + _BEHIND)


def of_a_person(text: str, start: int, end: int) -> bool:
    """Whether the match is about a person named Dan: with a surname, or a possession."""
    if not text[start:end].endswith("Dan") or not _SOMEBODY.match(text, end):
        return False
    return not _FREED.search(text, start, end + _BEHIND)
