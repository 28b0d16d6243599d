"""Syntax of the phrases.

A space stands for any characters but letters and digits, so that phrases are found in spaced, dotted and glued forms
too; `<name>` stands for the words of that name.
"""

import re
from typing import Final

from pointsman_guard.domain.pattern import Pattern

_GAP: Final = r"[\W_]*"
_WORDS: Final = {
    "drop": (
        "(?:ignor(?:e|ing|ed)|disregard(?:ing)?|overlook|(?:set|put) aside|throw (?:out|away)|forget(?:ting|s)?"
        "|overrid(?:e|ing)|overrule|bypass(?:ing)?|discard"
        "|neglect|circumvent|dismiss|cancel|abandon|violate|erase|nullify|void|stop (?:following|obeying)"
        "|do(?:es)? ?n[o']? ?t (?:follow|obey|listen to|adhere to|comply with)|pay no attention to)"
    ),
    "fill": (
        "(?:(?:all|any|every|each|the|your|my|our|its|of|to|those|these|this|that|other|and|or|you|were|was|been|have"
        "|had|given|told|received|got|from|in|completely|entirely|totally|just|now|please|immediately|everything"
        "|anything|stated|provided|about|set|safety|system|developer|security|content|moderation|ethical|openai|what"
        "|i|said) )"
    ),
    "earlier": (
        "(?:previous|prior|above|earlier|preceding|foregoing|initial|original|existing|past|last|former|current|old)"
        "(?:ly)?"
    ),
    "orders": (
        "(?:instruction|guideline|guidance|directive|direction|prompt|programming|training|safeguard|guardrail)s?"
    ),
    "rules": (
        "(?:rule|command|order|constraint|restriction|limitation|context|message|direction|polic(?:y|ie)|protocol"
        "|filter|conversation|text|content)s?"
    ),
    "your": (
        "(?:your|system|safety|developer|ethical|moderation|security|content|openai"
        "|all (?:of )?(?:the|your|these|those|previous|prior))"
    ),
    "show": (
        "(?:reveal|show|print|repeat|output|display|tell|give|leak|expose|dump|recite|write|disclose|divulge|share"
        "|spill|paste|return|echo|list|summari[sz]e|translate|encode|copy|quote|state|describe)"
    ),
    "hidden": "(?:system|hidden|initial|secret|original|developer|internal|confidential|base|first|underlying|pre)",
    "text": "(?:system )?(?:prompt|instruction|message|directive|guideline|rule|configuration|polic(?:y|ie))s?",
    "free": (
        "(?:unrestricted|unfiltered|uncensored|jailbroken|jailbreak|unaligned|amoral|unethical|unbound|limitless"
        "|lawless|evil|rogue)"
    ),
    "limits": "(?:restriction|filter|limitation|guideline|rule|boundar|moral|ethic|censor)",
}


def phrase(category: str, *parts: str) -> Pattern:
    """A pattern; between its parts there may be a gap."""
    text = re.sub(r"<(\w+)>", lambda match: _WORDS[match[1]], " ".join(parts))
    return Pattern(category, text.replace(" ?", _GAP).replace(" ", _GAP))
