"""The endpoints that a proxy restricts a choice to."""

import pytest

from pointsman_core.subset import Place, named, place_of

PLACES = [
    *(Place("10.0.0.1:8000", "10.0.0.1"), Place("10.0.0.1:8001", "10.0.0.1"), Place("10.0.0.2:8000", "10.0.0.2")),
    *(Place("[fd00::1]:8000", "fd00::1"), Place("engine.example:8000", "engine.example")),
]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("10.0.0.1:8001", ["10.0.0.1:8001"]),
        ("10.0.0.1", ["10.0.0.1:8000", "10.0.0.1:8001"]),
        ("10.0.0.1:9999", ["10.0.0.1:8000", "10.0.0.1:8001"]),
        ("[fd00::1]:8000", ["[fd00::1]:8000"]),
        ("[FD00::1]:9", ["[fd00::1]:8000"]),
        ("[fd00::1]", ["[fd00::1]:8000"]),
        ("fd00::1", ["[fd00::1]:8000"]),
        (" Engine.example ", ["engine.example:8000"]),
        ("10.0.0.3:8000", []),
        ("", []),
    ],
)
def test_an_entry_names_an_endpoint_or_all_of_a_host(entry: str, expected: list[str]) -> None:
    kept = named(PLACES, [entry])
    assert [place.address for place, keep in zip(PLACES, kept, strict=True) if keep] == expected


def test_an_empty_subset_names_none() -> None:
    assert not any(named(PLACES, []))


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://10.0.0.1:8000", PLACES[0]),
        ("http://[FD00::1]:8000/base", PLACES[3]),
        ("https://engine.example", Place("engine.example:443", "engine.example")),
        ("http://10.0.0.1", Place("10.0.0.1:80", "10.0.0.1")),
        ("http://10.0.0.1:many", Place("", "")),
        ("", Place("", "")),
    ],
)
def test_an_endpoint_is_where_its_url_says(url: str, place: Place) -> None:
    assert place_of(url) == place
