"""Every engine's names are read into the same signals."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_engines.dialect import Dialect, detect
from pointsman_engines.exposition import Exposition, UnreadableMetrics
from pointsman_engines.reading import (
    MOST_REQUESTS,
    CacheFacts,
    EngineIdentity,
    ImplausibleMetrics,
    MissingMetrics,
    Reading,
    identity,
    read,
    read_cache,
)

# The engines' answers at `/metrics`, cut down to the families around those that are read.
FOLDER = Path(__file__).parent / "expositions"
VLLM, VLLM_TWO_RANKS, VLLM_OLD = (
    FOLDER.joinpath(f"{name}.txt").read_bytes() for name in ("vllm", "vllm-two-ranks", "vllm-old")
)
SGLANG, SGLANG_OLD, TRTLLM = (
    FOLDER.joinpath(f"{name}.txt").read_bytes() for name in ("sglang", "sglang-old", "trtllm")
)
TRITON_TRT, TRITON, LLAMACPP = (
    FOLDER.joinpath(f"{name}.txt").read_bytes() for name in ("triton-trt", "triton", "llamacpp")
)


def looked_at(text: bytes) -> tuple[Dialect, Exposition]:
    exposition = Exposition(text)
    dialect = detect(exposition)
    assert dialect is not None
    return dialect, exposition


@pytest.mark.parametrize(
    ("text", "engine", "reading"),
    [
        (
            VLLM,
            "vllm",
            Reading(7, 3, 0.6235, ("ada", "sql"), ("legal",), 2, identity=EngineIdentity(1.75e9, 15200.0)),
        ),
        (VLLM_TWO_RANKS, "vllm", Reading(12, 3, 0.4, identity=EngineIdentity(None, 150.0))),
        (VLLM_OLD, "vllm", Reading(1, 0, 0.25)),
        (SGLANG, "sglang", Reading(6, 11, 0.25, identity=EngineIdentity(None, 5000.0))),
        (SGLANG_OLD, "sglang", Reading(3, 1, 0.25)),
        (TRTLLM, "trtllm", Reading(9, 2, 0.5, identity=EngineIdentity(None, 15.0))),
        (TRITON_TRT, "triton", Reading(4, 6, 0.75, identity=EngineIdentity(None, 77.0))),
        (TRITON, "triton", Reading(0, 6, 0.0, identity=EngineIdentity(None, 42.0))),
        (LLAMACPP, "llamacpp", Reading(2, 3, 0.0, identity=EngineIdentity(None, 5120.0), worked=None)),
    ],
    ids=["vllm", "vllm-two-ranks", "vllm-old", "sglang", "sglang-old", "trtllm", "triton-trtllm", "triton", "llamacpp"],
)
def test_an_engine_is_recognised_by_its_names_and_read(text: bytes, engine: str, reading: Reading) -> None:
    dialect, exposition = looked_at(text)
    assert dialect.engine == engine
    assert replace(read(dialect, exposition), by_rank=None) == reading


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (VLLM, CacheFacts(16, 11560, 1)),
        (VLLM_TWO_RANKS, CacheFacts(16, 1900, 2, ("0", "1"))),
        (VLLM_OLD, CacheFacts(16, None, 1)),
        (SGLANG, CacheFacts(64, 900, 2, ("0", "1"))),
        (SGLANG_OLD, CacheFacts(32, 700, 1)),
        (TRTLLM, CacheFacts(32, 4096, 1)),
        (TRITON_TRT, CacheFacts(64, 6239, 1)),
        (TRITON, CacheFacts(None, None, 1)),
    ],
)
def test_the_cache_of_all_ranks_together_is_known(text: bytes, facts: CacheFacts) -> None:
    assert read_cache(*looked_at(text)) == facts


def test_one_info_sample_speaks_for_each_of_several_ranks() -> None:
    text = VLLM_TWO_RANKS[: VLLM_TWO_RANKS.index(b'vllm:cache_config_info{block_size="16",engine="1"')]
    assert read_cache(*looked_at(text)) == CacheFacts(16, 2000, 2, ("0", "1"))


def test_the_names_that_are_asked_for_hold_the_whole_reading() -> None:
    for text in (VLLM, VLLM_TWO_RANKS, VLLM_OLD, SGLANG, TRTLLM, TRITON_TRT, TRITON, LLAMACPP):
        dialect, exposition = looked_at(text)
        wanted = tuple(name + end for name in dialect.moving_families for end in (b"{", b" "))
        filtered = b"\n".join(line for line in text.splitlines() if line.startswith(wanted))
        assert read(dialect, Exposition(filtered)) == read(dialect, exposition)


def test_a_triton_without_a_gauge_of_running_requests_is_busy_while_executions_are_counted() -> None:
    dialect, exposition = looked_at(TRITON)
    first = read(dialect, exposition)
    assert read(dialect, exposition, first).running == 0
    later = Exposition(TRITON.replace(b"} 40", b"} 90"))
    assert read(dialect, later, first).running == 1


def test_an_engine_whose_weights_are_away_is_asleep() -> None:
    states = b'vllm:engine_sleep_state{engine="0",sleep_state="%b"} %b\n'
    for awake, asleep in ((b"1.0", False), (b"0.0", True)):
        text = VLLM + states % (b"awake", awake) + states % (b"weights_offloaded", b"0.0")
        assert read(*looked_at(text)).asleep is asleep


def test_a_named_engine_kind_narrows_the_choice() -> None:
    both = Exposition(TRITON + VLLM)
    triton = detect(both, "triton")
    assert triton is not None
    assert triton.engine == "triton"
    assert detect(Exposition(VLLM), "sglang") is None
    assert detect(Exposition(b"up 1\n")) is None


def test_without_running_or_waiting_requests_nothing_is_said_and_the_families_are_named() -> None:
    for gone in (b"num_requests_running", b"num_requests_waiting"):
        dialect, _ = looked_at(VLLM)
        exposition = Exposition(VLLM.replace(b"vllm:" + gone + b"{", b"vllm:gone{"))
        with pytest.raises(MissingMetrics) as caught:
            read(dialect, exposition)
        assert caught.value.names == (f"vllm:{gone.decode()}",)


@pytest.mark.parametrize("written", [b"NaN", b"62.3", b"-0.1", b"+Inf"])
def test_an_impossible_kv_usage_is_taken_as_not_reported_and_told(written: bytes) -> None:
    reading = read(*looked_at(VLLM.replace(b"0.62345678", written)))
    assert (reading.kv_usage, reading.running) == (0.0, 7)
    assert reading.doubt.startswith(f"vllm:kv_cache_usage_perc is {float(written):g}")


@pytest.mark.parametrize(("written", "usage"), [(b"1.004", 1.0), (b"-0.001", 0.0)])
def test_a_rounding_error_of_the_kv_usage_is_no_doubt(written: bytes, usage: float) -> None:
    reading = read(*looked_at(VLLM.replace(b"0.62345678", written)))
    assert (reading.kv_usage, reading.doubt) == (usage, "")


@pytest.mark.parametrize("written", [b"NaN", b"-3", b"1e18", b"+Inf"])
@pytest.mark.parametrize("name", [b"running", b"waiting"])
def test_an_impossible_number_of_requests_leaves_the_load_unknown_but_the_process_known(
    name: bytes, written: bytes
) -> None:
    text = re.sub(b"(vllm:num_requests_%b{[^}]*}) [0-9.]+" % name, b"\\1 " + written, VLLM)
    dialect, exposition = looked_at(text)
    with pytest.raises(ImplausibleMetrics, match=f"vllm:num_requests_{name.decode()} is"):
        read(dialect, exposition)
    assert identity(dialect, exposition) == EngineIdentity(1.75e9, 15200.0)


@pytest.mark.requirement("SIGNAL-3")
@given(value=st.floats(), name=st.sampled_from([b"running", b"waiting", b"kv"]))
def test_no_figure_of_an_engine_leaves_its_bounds(value: float, name: bytes) -> None:
    figures = {b"running": 1.0, b"waiting": 1.0, b"kv": 0.5} | {name: value}
    text = b"vllm:num_requests_running %b\nvllm:num_requests_waiting %b\nvllm:kv_cache_usage_perc %b\n" % tuple(
        repr(each).encode() for each in figures.values()
    )
    try:
        reading = read(*looked_at(text))
    except ImplausibleMetrics:
        assert name != b"kv"
        return
    assert 0 <= reading.running <= MOST_REQUESTS
    assert 0 <= reading.waiting <= MOST_REQUESTS
    assert 0.0 <= reading.kv_usage <= 1.0


def test_the_work_of_an_engine_is_what_it_computed_and_generated() -> None:
    text = VLLM + b'vllm:generation_tokens_total{engine="0",model_name="m"} 300.0\n'
    assert read(*looked_at(text)).worked == 15500


def test_a_malformed_number_is_an_error_rather_than_a_zero() -> None:
    dialect, exposition = looked_at(VLLM.replace(b" 7.0", b" seven"))
    with pytest.raises(UnreadableMetrics, match="vllm:num_requests_running"):
        read(dialect, exposition)


def test_the_counters_own_start_stands_in_for_the_process_start() -> None:
    dialect, exposition = looked_at(VLLM.replace(b"process_start_time_seconds 1.75e+09\n", b""))
    assert identity(dialect, exposition).started_at == 1750000030.1234567


def test_work_is_unknown_where_a_counter_of_it_is_missing() -> None:
    assert read(*looked_at(VLLM)).worked is None
