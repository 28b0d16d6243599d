"""The behaviour that the conformance tests of the Gateway API Inference Extension ask of an endpoint picker."""

import pytest

from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_testing.ext_proc import DESTINATION, FULL_DUPLEX, sent_on
from pointsman_testing.picker import PickerUnderTest, StartPicker

SELECTION = "test-epp-endpoint-selection"
SERVED = "x-conformance-test-served-endpoint"


async def conforming(start_picker: StartPicker, **settings: object) -> PickerUnderTest:
    picker = await start_picker(**{"conformance_headers": True, "other_paths": True} | settings)
    views = tuple(WorkerView(worker=f"worker-{each}", url=f"http://10.0.0.{each}:8000") for each in (1, 2, 3))
    picker.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=views))
    return picker


@pytest.mark.parametrize("path", ["/v1/completions", "/primary-gateway-test"])
@pytest.mark.parametrize(
    ("selection", "expected"),
    [("10.0.0.2", {"10.0.0.2:8000"}), ("10.0.0.1, 10.0.0.2:8000", {"10.0.0.1:8000", "10.0.0.2:8000"})],
)
async def test_a_test_selects_endpoints_by_header_on_any_path(
    selection: str, expected: set[str], path: str, start_picker: StartPicker
) -> None:
    picker = await conforming(start_picker)
    exchange = picker.client.open()
    head, *_ = await sent_on(exchange, path=path, headers={SELECTION: selection}, subset=["10.0.0.3"])
    assert set(head.set[DESTINATION].split(",")) == expected


async def test_a_selection_that_names_no_endpoint_is_503(start_picker: StartPicker) -> None:
    picker = await conforming(start_picker)
    exchange = picker.client.open()
    await exchange.request(method="GET", path="/test", headers={SELECTION: "10.0.0.9"}, end=True)
    assert (await exchange.reply()).status == 503


@pytest.mark.parametrize("path", ["/v1/completions", "/primary-gateway-test"])
@pytest.mark.parametrize(
    ("reported", "told"),
    [("10.0.0.2:8000", "10.0.0.2:8000"), (None, "fail: missing destination endpoint served metadata")],
)
async def test_the_answer_names_the_endpoint_for_conformance_tests(
    reported: str | None, told: str, path: str, start_picker: StartPicker
) -> None:
    picker = await conforming(start_picker)
    exchange = picker.client.open()
    await sent_on(exchange, path=path)
    await exchange.response(served=reported, end=True)
    assert (await exchange.reply()).set[SERVED] == told


async def test_without_the_setting_the_headers_mean_nothing(start_picker: StartPicker) -> None:
    picker = await conforming(start_picker, conformance_headers=False)
    exchange = picker.client.open()
    head, _ = await sent_on(exchange, headers={SELECTION: "10.0.0.2"}, modes=(FULL_DUPLEX, FULL_DUPLEX))
    assert head.set[DESTINATION] == "10.0.0.1:8000,10.0.0.2:8000"
    await exchange.response(served="10.0.0.1:8000", end=True)
    assert SERVED not in (await exchange.reply()).set
