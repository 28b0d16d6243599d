"""Workers without a configured name."""

import pytest

from pointsman_core.worker_name import worker_name


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://10.0.0.7:8000", "10.0.0.7:8000"),
        ("https://engine.example/base", "engine.example"),
        ("http://[::1]:8000/", "::1:8000"),
    ],
)
def test_a_worker_without_a_name_is_called_after_its_address(url: str, name: str) -> None:
    assert worker_name(url) == name
