"""Credentials in known forms. Obvious placeholders are ignored."""

import re
from typing import Final

from pointsman_guard.domain.checksums import entropy
from pointsman_guard.domain.pattern import Pattern

_PLACEHOLDER: Final = re.compile(
    r"example|placeholder|your[_-]?|xxxx|dummy|redacted|changeme|123456789|abcdef0?123|\.\.\.|<|\$\{", re.IGNORECASE
)
_ORDINARY: Final = frozenset(
    ("password", "passwd", "pass", "secret", "user", "root", "admin", "postgres", "mysql", "guest", "test", "pw", "pwd")
)


def _random(text: str) -> bool:
    """Whether the text is random, as keys are: random letters and digits have more than 3 bits per character, words and
    fillers less."""
    return not _PLACEHOLDER.search(text) and entropy(text) >= 3.0


def _password(text: str) -> bool:
    return text.lower() not in _ORDINARY and not _PLACEHOLDER.search(text) and entropy(text) >= 2.5


SECRETS: Final = (
    Pattern("secret.private-key", r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----[\r\n\\n \t]*[A-Z0-9+/=]"),
    Pattern("secret.aws", r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b", _random),
    Pattern("secret.aws", r"aws.{0,20}?secret.{0,20}?[=:]\s*[\"']?([A-Za-z0-9/+]{40})\b", _random, 1),
    Pattern("secret.github", r"\b(?:gh[pousr]_[A-Z0-9]{36,}|github_pat_[A-Z0-9_]{40,})\b", _random),
    Pattern("secret.gitlab", r"\bglpat-[A-Z0-9_\-]{20,}\b", _random),
    Pattern("secret.slack", r"\bxox[abeoprs]-[A-Z0-9\-]{10,}\b", _random),
    Pattern("secret.slack", r"hooks\.slack\.com/services/T[A-Z0-9]{6,}/B[A-Z0-9]{6,}/[A-Z0-9]{16,}", _random),
    Pattern("secret.stripe", r"\b[rs]k_live_[A-Z0-9]{16,}\b", _random),
    Pattern("secret.google", r"\bAIza[A-Z0-9_\-]{35}\b", _random),
    Pattern("secret.openai", r"\bsk-(?:proj-|svcacct-|admin-)?[A-Z0-9_\-]{32,}\b", _random),
    Pattern("secret.anthropic", r"\bsk-ant-[A-Z0-9_\-]{32,}\b", _random),
    Pattern("secret.huggingface", r"\bhf_[A-Z0-9]{30,}\b", _random),
    Pattern("secret.npm", r"\bnpm_[A-Z0-9]{36}\b", _random),
    Pattern("secret.pypi", r"\bpypi-AgEIcHlwaS5vcmc[A-Z0-9_\-]{40,}", _random),
    Pattern("secret.sendgrid", r"\bSG\.[A-Z0-9_\-]{16,}\.[A-Z0-9_\-]{30,}\b", _random),
    Pattern("secret.digitalocean", r"\bdo[oprt]_v1_[a-f0-9]{64}\b", _random),
    Pattern("secret.telegram", r"\b\d{8,10}:AA[A-Z0-9_\-]{33}\b", _random),
    Pattern("secret.azure", r"AccountKey=([A-Z0-9+/]{80,}={0,2})", _random, 1),
    Pattern("secret.jwt", r"\beyJ[A-Z0-9_\-]{10,}\.eyJ[A-Z0-9_\-]{10,}\.[A-Z0-9_\-]{10,}", _random),
    Pattern(
        "secret.password-in-url", r"\b[a-z][a-z0-9+.\-]*://[^\s:/@]{1,64}:([^\s:/@]{4,128})@[a-z0-9]", _password, 1
    ),
)
