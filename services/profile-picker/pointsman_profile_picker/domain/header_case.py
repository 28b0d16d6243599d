"""Names of headers in an expression, in any case: a request's are in lower case."""

import re
from typing import Final

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
