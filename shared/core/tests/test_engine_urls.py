"""URLs by which engines are named: HTTP over TCP, or over a Unix socket."""

import pytest

from pointsman_core.config import ConfigError, load
from pointsman_core.engine_url import UnixAddress, check_engine_url, unix_address
from pointsman_core.worker_name import worker_name


@pytest.mark.parametrize(
    ("url", "address", "worker"),
    [
        ("unix:/run/vllm.sock", UnixAddress("/run/vllm.sock", ""), "run-vllm.sock"),
        ("unix:/run/vllm.sock:", UnixAddress("/run/vllm.sock", ""), "run-vllm.sock"),
        ("unix:/run/vllm.sock:/", UnixAddress("/run/vllm.sock", ""), "run-vllm.sock"),
        ("unix:/run/vllm.sock:/base/", UnixAddress("/run/vllm.sock", "/base"), "run-vllm.sock-base"),
        ("http://10.0.0.7:8000", None, "10.0.0.7:8000"),
    ],
)
def test_a_socket_is_an_engine_with_a_base_path_behind_a_colon(
    url: str, address: UnixAddress | None, worker: str
) -> None:
    assert unix_address(url) == address
    assert worker_name(url) == worker
    assert check_engine_url(url) == url


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("unix:run/vllm.sock", "absolute path"),
        ("unix:", "absolute path"),
        ("unix:///run/", "absolute path"),
        ("unix:/run/vllm.sock:base", "comes nothing"),
        ("unix:/run/vllm.sock:/base?x=1", "comes nothing"),
        (f"unix:/{'x' * 107}", "107 bytes"),
        ("unix:/run/a b.sock", "space"),
        ("ftp://host", "http:// or https://"),
    ],
)
def test_any_other_url_is_refused_with_what_would_be_right(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_engine_url(url)
    with pytest.raises(ConfigError, match=problem):
        load({"pools": {"p": {"discovery": "static", "engines": [url]}}})


def test_the_metrics_of_an_engine_are_behind_its_own_socket() -> None:
    for metrics_url, right in (("unix:/run/a.sock:/m", True), ("unix:/run/b.sock:/m", False), ("http://h:1/m", False)):
        entry = {"url": "unix:/run/a.sock", "metrics_url": metrics_url}
        document = {"pools": {"p": {"discovery": "static", "engines": [entry]}}}
        if right:
            load(document)
            continue
        with pytest.raises(ConfigError, match="behind the same one"):
            load(document)
