"""Revisions: taken over whole or refused whole, kept for those who began with them."""

import asyncio
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from pointsman_core.config import Config, ConfigError
from pointsman_hosting.configuration import KEPT, Configuration
from pointsman_runtime.configuring.config_text import parse
from pointsman_testing import eventually


def pools(config: Config, revision: int) -> tuple[str, ...]:
    if "forbidden" in config.pools:
        raise ConfigError([("pools.forbidden", "this service can't run it")])
    return tuple(config.pools)


@pytest.fixture
def configuration() -> Configuration[tuple[str, ...]]:
    return Configuration(pools, CollectorRegistry())


def text(*names: str) -> str:
    return "pools:\n" + "".join(f"  {name}: {{}}\n" for name in names)


def test_a_revision_is_in_use_at_once_and_the_one_before_is_kept(
    configuration: Configuration[tuple[str, ...]],
) -> None:
    seen: list[int] = []
    configuration.on_change(lambda revision: seen.append(revision.number))
    assert configuration.offer_revision(3, text("a"))
    assert configuration.offer_revision(5, text("a", "b"))
    assert configuration.current.compiled == ("a", "b")
    assert configuration.revisions[3].compiled == ("a",)
    assert configuration.revisions[4].number == 5
    assert seen == [3, 5]


@pytest.mark.parametrize(
    "bad", ["", "# cut off\n", "{}", "pools: [", "pools: 3", "polls: {}", text("forbidden"), "pools: {a: {}, a: {}}"]
)
def test_a_bad_revision_is_refused_and_leaves_everything_as_it_was(
    configuration: Configuration[tuple[str, ...]], bad: str
) -> None:
    configuration.offer_revision(1, text("a"))
    assert not configuration.offer_revision(2, bad)
    assert configuration.current.number == 1
    assert configuration.revisions[2].number == 1
    assert list(configuration.refused) == [2]


@pytest.mark.parametrize("error", [KeyError("mine"), OSError("no such file"), RuntimeError("broken")])
def test_a_revision_that_breaks_the_code_of_a_service_is_refused_too(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def compile_(config: Config, revision: int) -> int:
        if revision == 2:
            raise error
        return len(config.pools)

    configuration = Configuration(compile_, CollectorRegistry())
    assert [configuration.offer_revision(number, text("a")) for number in (1, 2, 3)] == [True, False, True]
    assert configuration.refused == {2: f"{type(error).__name__}: {error}"}
    assert [record.getMessage() for record in caplog.records] == ["config_refused"]


def test_before_the_first_good_revision_it_says_what_is_missing(
    configuration: Configuration[tuple[str, ...]],
) -> None:
    assert "config apply" in (configuration.missing or "")
    configuration.offer_revision(1, text("forbidden"))
    assert "revision 1 was refused: pools.forbidden: this service can't run it (line 2)" in (
        configuration.missing or ""
    )
    with pytest.raises(LookupError):
        _ = configuration.current
    configuration.offer_revision(2, text("a"))
    assert configuration.missing is None


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_the_newest_good_revision_runs_and_the_last_good_ones_are_kept(outcomes: list[bool]) -> None:
    configuration = Configuration(pools, CollectorRegistry())
    for number, good in enumerate(outcomes, start=1):
        assert configuration.offer_revision(number, text(f"p{number}") if good else "pools: 3") == good
    good_ones = [number for number, good in enumerate(outcomes, start=1) if good]
    if good_ones:
        assert configuration.current.number == good_ones[-1]
        for number in good_ones[-KEPT:]:
            assert configuration.revisions[number].number == number
        for number in good_ones[:-KEPT]:
            assert configuration.revisions[number].number == good_ones[-1]
    assert len(configuration.refused) <= KEPT


def test_a_revision_whose_number_comes_again_is_the_newest(configuration: Configuration[tuple[str, ...]]) -> None:
    for number in (1, *range(100, 100 + KEPT - 1)):
        configuration.offer_revision(number, text("old"))
    for number in (1, 2):
        configuration.offer_revision(number, text(f"new-{number}"))
    assert configuration.revisions[1].compiled == ("new-1",)
    assert configuration.current.compiled == ("new-2",)


async def test_a_service_that_waits_for_a_configuration_logs_it(
    configuration: Configuration[tuple[str, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    waiting = asyncio.create_task(configuration.wait_loaded(patience_s=0.001))
    await eventually(lambda: caplog.records)
    assert caplog.records[0].getMessage() == "configuration_missing"
    assert "pointsman config apply" in str(caplog.records[0].__dict__)
    configuration.offer_revision(1, "pools: {a: {}}")
    await waiting


async def test_a_configuration_that_comes_as_patience_ends_is_not_said_to_be_missing(
    configuration: Configuration[tuple[str, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    waiting = asyncio.create_task(configuration.wait_loaded(patience_s=0.0))
    await asyncio.sleep(0)  # now it waits, and its patience ends in the next turn
    configuration.offer_revision(1, "pools: {a: {}}")
    await waiting
    assert "configuration_missing" not in [record.getMessage() for record in caplog.records]


def test_a_bad_file_is_named(configuration: Configuration[tuple[str, ...]], tmp_path: Path) -> None:
    path = tmp_path / "pointsman.yaml"
    path.write_text("pools:\n  a:\n    blocktokens: 3\n")
    with pytest.raises(ConfigError, match=r"pointsman\.yaml.*blocktokens.*\(line 3\)"):
        configuration.offer_file(path)


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ("pools:\n  a.b:\n    models: 3\n", 3),
        ("pools:\n  a: {}\nmodels:\n  m:\n    pool: nowhere\n", 5),
        ("pools:\n  a: {}\n  a: {}\n", 3),
        ("pools:\n\n  a: {\n", 4),
        ("profiles:\n  p:\n    request:\n      - guard\n      - scedular\n", 5),
        ("pools: {}\nstages:\n  my stage: {}\n", 3),
        ("scheduling:\n  a:\n    scorers:\n      - {use: queue, weight: heavy}\n", 4),
        ("selectors:\n  a:\n    rankings:\n      default:\n        scorers: [{use: cost, weight: x}]\n", 5),
    ],
)
def test_an_error_names_its_line(document: str, line: int) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(document)
    assert f"line{'s' if 'twice' in str(caught.value) else ''} " in str(caught.value)
    assert str(line) in str(caught.value)


@given(st.text(max_size=60) | st.from_regex(r"[pools:{}\[\] \n&*!a-c-]{0,40}", fullmatch=True))
def test_any_text_is_a_configuration_or_a_configuration_error(document: str) -> None:
    try:
        config = parse(document)
    except ConfigError:
        return
    assert isinstance(config, Config)


def test_a_small_text_that_aliases_make_huge_is_refused() -> None:
    levels = (f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 12))
    rows = ["a0: &a0 [x]", *levels]
    with pytest.raises(ConfigError, match="values, aliases included"):
        parse("\n".join(rows))


@pytest.mark.parametrize("document", ["[" * 3000, "a: &a [*a]", "{" * 60 + "}" * 60])
def test_a_text_nested_without_end_is_refused(document: str) -> None:
    with pytest.raises(ConfigError):
        parse(document)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("pools:\n\ta: {}\n", "a tab stands here; indent with spaces (line 2, column 1)"),
        (
            "pools: {}\n---\npools: {}\n",
            "a second document begins here; the file must be one document (line 2, column 1)",
        ),
        ("pools: @a\n", "put a text that begins with @ in quotes (line 1, column 8)"),
        ("\u2028pools:\u2028 `a\n", "put a text that begins with ` in quotes"),
    ],
)
def test_a_text_that_is_no_yaml_is_refused_with_its_mend(written: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^not valid YAML: {re.escape(words)}"):
        parse(written)


@pytest.mark.parametrize(
    ("value", "words"), [("2026-13-01", "month must be in 1..12"), ("9" * 5000, "Exceeds the limit")]
)
def test_a_date_or_a_number_that_there_cannot_be_is_no_yaml(value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^not valid YAML: {words}"):
        parse(f"pools: {{a: {{models: [{value}]}}}}")
