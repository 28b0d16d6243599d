"""Finds texts that are encoded inside texts: in Base64, Base85, Base32, hexadecimal digits, Morse code, percent or
other escapes, perhaps several times.

The `Work` of a check bounds the effort. Texts encoded up to `DEPTH` times are decoded.
"""

import base64
import binascii
import html
import re
import string
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from urllib.parse import unquote

from pointsman_guard.domain.expressions import Expressions

DEPTH: Final = 4
MOST: Final = 393216
"""Characters that one check may decode; nested ones count each time."""
LEAST: Final = 384
"""Minimum charge of a piece in characters, so that a check may try 1,024 of them."""
SHORTEST: Final = 8
"""Minimum characters of a decoded text."""
SAMPLE: Final = 256
"""Bytes that are enough to recognise a text."""
READABLE: Final = 0.85
"""Minimum share of letters, digits, spaces and common marks for bytes to count as a text."""

BETWEEN: Final = "\n#0#\n"
"""Separates texts that are searched together: neither a phrase nor encoded data continues across it."""

_UNCOMMON: Final = re.compile(r"[^\w \t\r\n.,:;!?'\"()\-/@<>\[\]|#]")
_BASE64: Final = (
    r"(?:[A-Za-z0-9+/_-]{20,}[\r\n]{1,2})*[A-Za-z0-9+/_-]{20,}={0,2}|[A-Za-z0-9+/_-]{10,}={1,2}"
    r"|(?:[A-Za-z0-9+/_-]{4}[ ,.|-]){4,}[A-Za-z0-9+/_-]{2,4}={0,2}"
)
_BASE32: Final = r"\b[A-Z2-7]{16,}={0,6}"
_HEX: Final = r"(?:(?:0x|\\x)?[0-9a-fA-F]{2}[\s:,;-]?){10,}"
_PERCENT: Final = r"[A-Za-z0-9_.~+-]*(?:%[0-9a-fA-F]{2}[A-Za-z0-9_.~+-]*){3,}"
_ENTITIES: Final = r"(?:&#(?:x[0-9a-fA-F]{1,6}|[0-9]{1,7});?\s?){3,}"
_BRACED: Final = r"(?:\\u\{[0-9a-fA-F]{1,6}\}\s?){3,}"
_ESCAPES: Final = r"(?:\\u[0-9a-fA-F]{4}\s?){3,}"
"""JSON's escapes. Those of the text itself are read by `escapes`, which knows their places."""
_BINARY: Final = r"(?:[01]{8}\s?){6,}"
_DECIMAL: Final = (
    r"\b(?:(?:3[2-9]|[4-9][0-9]|1[01][0-9]|12[0-6])[\s,;]{1,2}){9,}(?:3[2-9]|[4-9][0-9]|1[01][0-9]|12[0-6])\b"
)
_BASE85: Final = r"<~[!-uz\s]{12,}~>|[!-~]{6,}[!#$%&()*;<>?@^{|}~`][!-~]{18,}"
_MORSE: Final = r"(?:[.\-]{1,6}(?: {1,3}| ?[/|] ?|\n)){15,}[.\-]{1,6}"
_CODES_OF_LETTERS: Final = (
    ".- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- -. --- .--. --.- .-. ... - ..- ...- .-- -..- -.-- --.."
)
_MORSE_LETTERS: Final[dict[str, str]] = dict(zip(_CODES_OF_LETTERS.split(), string.ascii_lowercase, strict=True))
_ESCAPE: Final = re.compile(r"\\u\{?([0-9a-fA-F]{1,6})\}?")


class Work:
    """Characters that one check may still decode."""

    __slots__ = ("exceeded", "left")

    def __init__(self, most: int = MOST) -> None:
        self.left = most
        self.exceeded = False
        """Whether any data wasn't decoded for lack of it."""

    def spend_characters(self, size: int) -> bool:
        """Whether this number of characters may still be decoded; if so, subtract it."""
        cost = max(size, LEAST)
        if cost > self.left:
            self.exceeded = True
            return False
        self.left -= cost
        return True


def hidden(text: str, work: Work) -> list[str]:
    """The readable texts that are encoded in a text; nested ones come after them."""
    found: dict[str, None] = {}
    for depth in range(DEPTH):
        codes = [each for each in _EXPRESSIONS.find_matching(text) if depth or each != _OF_JSON]
        fresh = dict.fromkeys(each for each in _decoded(text, codes, work) if each not in found)
        if not fresh:
            break
        found |= fresh
        # All at once: most are short, and a pass costs more than the search itself.
        text = BETWEEN.join(fresh)
    return list(found)


def _decoded(text: str, codes: Iterable[int], work: Work) -> Iterator[str]:
    for number in codes:
        tried: set[str] = set()
        for match in _EXPRESSIONS.find_each(number, text):
            if match in tried:
                continue
            tried.add(match)
            if not work.spend_characters(len(match)):
                return
            yield from (decoded for decoded in _DECODERS[number](match) if len(decoded) >= SHORTEST)


def _readable(raw: bytes) -> Iterator[str]:
    for encoding in ("utf-8", "utf-16-le"):
        # Data that begins as noise isn't decoded whole, or a picture would cost more than it is worth.
        if _looks_like_text(raw[:SAMPLE].decode(encoding, "ignore"), min(len(raw), SAMPLE)):
            text = raw.decode(encoding, "ignore").replace("\x00", "")
            yield text
            return


def _looks_like_text(text: str, size: int) -> bool:
    fine = len(text) - len(_UNCOMMON.findall(text))
    return len(text) * 4 >= size and fine >= READABLE * max(1, len(text)) and (text.isascii() or "\x00" not in text)


def _base64(text: str) -> Iterator[str]:
    compact = re.sub(r"[\s,.|]", "", text).replace("-", "+").replace("_", "/").rstrip("=")
    # A text may begin before what was shown of it: in a window, or glued to a word.
    for start in range(4):
        piece = compact[start:]
        piece = piece[: len(piece) - (len(piece) % 4 == 1)]
        try:
            raw = base64.b64decode(piece + "=" * (-len(piece) % 4))
        except (binascii.Error, ValueError):
            continue
        yield from _readable(raw)


def _base32(text: str) -> Iterator[str]:
    compact = text.rstrip("=")
    try:
        yield from _readable(base64.b32decode(compact + "=" * (-len(compact) % 8)))
    except (binascii.Error, ValueError):
        return


def _hex(text: str) -> Iterator[str]:
    digits = re.sub(r"0x|\\x|[\s:,;-]", "", text)
    for start in range(2):
        piece = digits[start:]
        yield from _readable(bytes.fromhex(piece[: len(piece) // 2 * 2]))


def _binary(text: str) -> Iterator[str]:
    digits = re.sub(r"\s", "", text)
    yield from _readable(bytes(int(digits[at : at + 8], 2) for at in range(0, len(digits) - 7, 8)))


def _decimal(text: str) -> Iterator[str]:
    yield from _readable(bytes(int(number) for number in re.findall(r"\d+", text)))


def _base85(text: str) -> Iterator[str]:
    framed = text.startswith("<~")
    for decode in (base64.a85decode,) if framed else (base64.b85decode, base64.a85decode):
        # These decode in Python: data that begins as noise costs only its beginning.
        for piece in (text.removeprefix("<~").removesuffix("~>"), text.strip("\"'`.,;()")):
            try:
                begin = decode(piece[:25])
                if _looks_like_text(begin.decode("utf-8", "ignore"), len(begin)):
                    yield from _readable(decode(piece))
                    return
            except ValueError:
                continue


def _morse(text: str) -> Iterator[str]:
    words = re.split(r" {2,}| ?[/|] ?|\n", text)
    yield " ".join("".join(_MORSE_LETTERS.get(letter, "") for letter in word.split()) for word in words)


def _unescape(text: str) -> str:
    read = _ESCAPE.sub(lambda match: chr(min(int(match[1], 16), 0x10FFFF)), text)
    # Halves of a pair become one character; a half alone is none.
    return read.encode("utf-16", "surrogatepass").decode("utf-16", "ignore")


_CODES: Final[tuple[tuple[str, Callable[[str], Iterator[str]]], ...]] = (
    (_BASE64, _base64),
    (_HEX, _hex),
    (_BASE32, _base32),
    (_PERCENT, lambda text: iter([unquote(text.replace("+", " "))])),
    (_ENTITIES, lambda text: iter([html.unescape(text)])),
    (_BRACED, lambda text: iter([_unescape(text)])),
    (_ESCAPES, lambda text: iter([_unescape(text)])),
    (_BINARY, _binary),
    (_DECIMAL, _decimal),
    (_BASE85, _base85),
    (_MORSE, _morse),
)
_EXPRESSIONS: Final = Expressions([regex for regex, _ in _CODES])
_OF_JSON: Final = [regex for regex, _ in _CODES].index(_ESCAPES)
_DECODERS: Final = [decode for _, decode in _CODES]
