"""Numbers with a checksum."""

import math
import re
from collections import Counter
from typing import Final

_IBAN_LENGTHS: Final = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BR": 29, "BY": 28,
    "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18,
    "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22,
    "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20,
    "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MR": 27, "MT": 31, "MU": 30, "NL": 18,
    "NO": 15, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "SA": 24, "SC": 31, "SE": 24,
    "SI": 19, "SK": 24, "SM": 27, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24,
    "XK": 20,
}  # fmt: skip
"""Length in characters by country, from the registry of ISO 13616."""
_DOUBLED: Final = {str(digit): digit * 2 - 9 * (digit > 4) for digit in range(10)}
"""The value of a doubled digit: the digit sum of its double."""
_DNI: Final = "TRWAGMYFPDXBNJZSQVHLCKE"


def luhn(digits: str) -> bool:
    """ISO/IEC 7812-1, annex B."""
    return (sum(map(int, digits[::-2])) + sum(map(_DOUBLED.__getitem__, digits[-2::-2]))) % 10 == 0


def iban(text: str) -> bool:
    """ISO 13616: the country's length, and 1 modulo 97."""
    compact = re.sub(r"[^A-Za-z0-9]", "", text).upper()
    if _IBAN_LENGTHS.get(compact[:2]) != len(compact):
        return False
    turned = compact[4:] + compact[:4]
    return int("".join(str(int(character, 36)) for character in turned)) % 97 == 1


def iban_expression() -> str:
    """Matches possible IBANs: each country's letters, and as many characters as its IBANs have, grouped or not."""
    by_length: dict[int, list[str]] = {}
    for country, length in _IBAN_LENGTHS.items():
        by_length.setdefault(length, []).append(country)
    ways = (
        f"(?:{'|'.join(countries)})[ -]?[0-9]{{2}}(?:[ -]?[A-Z0-9]){{{length - 4}}}"
        for length, countries in sorted(by_length.items())
    )
    return rf"\b(?:{'|'.join(ways)})\b"


def ssn(text: str) -> bool:
    """A US social security number that may have been issued: no 000, 666 or 9xx, no 00, no 0000, and none printed in
    advertisements."""
    area, group, serial = re.findall(r"\d+", text)
    if area in ("000", "666") or area >= "900" or group == "00" or serial == "0000":
        return False
    return (area, group, serial) not in (("078", "05", "1120"), ("219", "09", "9999"), ("123", "45", "6789"))


def dni(text: str) -> bool:
    """A Spanish identity number: its letter is the number modulo 23."""
    compact = re.sub(r"[^0-9A-Za-z]", "", text).upper()
    return len(compact) == 9 and compact[8] == _DNI[int(compact[:8]) % 23]


def entropy(text: str) -> float:
    """Bits a character, of the characters' frequencies."""
    counts = Counter(text)
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts.values())
