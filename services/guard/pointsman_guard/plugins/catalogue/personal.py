"""Personal data. Numbers with a checksum must pass it."""

import re
from typing import Final

from pointsman_guard.domain.cards import CANDIDATE, cards
from pointsman_guard.domain.checksums import dni, iban, iban_expression, ssn
from pointsman_guard.domain.pattern import Pattern

_RESERVED: Final = re.compile(
    r"@(?:[\w-]+\.)*(?:example\.(?:com|org|net|edu)|[\w-]+\.(?:example|test|invalid|localhost|local|internal))$",
    re.IGNORECASE,
)
"""Domains that RFC 2606 and RFC 6761 reserve for examples, and domains without mailboxes."""
_SERVICE: Final = re.compile(
    r"^(?:git|noreply|no-reply|user|username|name|you|your\.?name|someone|foo|bar|test)@", re.IGNORECASE
)


def _mailbox(text: str) -> bool:
    return (
        not _RESERVED.search(text) and not _SERVICE.search(text) and not text.lower().endswith((".png", ".jpg", ".svg"))
    )


def _phone(text: str) -> bool:
    digits = re.sub(r"\D", "", text)
    # 555-0100 to 555-0199 are reserved for fiction.
    return (
        8 <= len(digits) <= 15 and len(set(digits)) > 2 and not re.search(r"555-?01\d\d$", re.sub(r"[ .()]", "-", text))
    )


PERSONAL: Final = (
    Pattern("pii.card", CANDIDATE, within=cards),
    Pattern("pii.iban", iban_expression(), iban),
    Pattern("pii.ssn", r"\b\d{3}[ -]\d{2}[ -]\d{4}\b", ssn),
    Pattern("pii.dni", r"\b\d{8}-?[A-HJ-NP-TV-Z]\b", dni),
    Pattern("pii.email", r"\b[A-Z0-9._%+\-]{1,64}@(?:[A-Z0-9](?:[A-Z0-9\-]*[A-Z0-9])?\.)+[A-Z]{2,24}\b", _mailbox),
    Pattern("pii.phone", r"\+[1-9]\d{0,2}(?:[ .\-/]?\(?\d{1,5}\)?){2,6}\b", _phone),
    Pattern("pii.phone", r"(?:\(\d{3}\) ?|\b\d{3}[.\-])\d{3}[.\-]\d{4}\b", _phone),
)
