"""The differences of two configurations, and the revision of each instance, as values."""

from datetime import UTC, datetime

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pointsman_cli.config.revisions import Replicas, behind
from pointsman_cli.config.stored_configuration import find, previous
from pointsman_cli.words import CommandError
from pointsman_contracts.presence import ServicePresence
from pointsman_contracts.timing import TIMES
from pointsman_core.config import Config
from pointsman_core.config.changes import ConfigChange, changes
from pointsman_runtime.configuring.config_text import parse
from pointsman_runtime.jetstream.stored_configuration import StoredRevision


def config(**models: float) -> Config:
    return parse(
        yaml.safe_dump(
            {"pools": {"p": {}}, "models": {name: {"pool": "p", "quality": q} for name, q in models.items()}}
        )
    )


def stored(revision: int, text: str) -> StoredRevision:
    return StoredRevision(revision, text, datetime(2026, 1, 1, tzinfo=UTC))


def beat(instance: str, revision: int, *, ready: bool = True) -> ServicePresence:
    return ServicePresence(
        service="scheduler", instance=instance, sequence=1, at_ms=1, version="1", ready=ready, revision=revision
    )


def test_a_change_has_its_key_and_both_values() -> None:
    assert changes(config(a=0.1, b=0.2), config(a=0.1, b=0.3, c=0.4)) == [
        ConfigChange("models.b.quality", "0.2", "0.3"),
        ConfigChange("models.c.pool", None, '"p"'),
        ConfigChange("models.c.quality", None, "0.4"),
    ]
    assert str(changes(config(a=0.1, b=0.2), config(a=0.1))[0]) == '- models.b.pool: "p"'


def test_a_default_that_is_written_down_is_no_change() -> None:
    assert (
        changes(parse("edge: {}"), parse("edge: {max_body: 20MiB}\nprofiles: {standard: {request: [scheduler]}}")) == []
    )


@given(
    st.dictionaries(st.sampled_from("abc"), st.floats(0, 1)), st.dictionaries(st.sampled_from("abc"), st.floats(0, 1))
)
def test_configurations_differ_exactly_when_their_policies_do(
    before: dict[str, float], after: dict[str, float]
) -> None:
    old, new = config(**before), config(**after)
    assert bool(changes(old, new)) == (old.policy_hash() != new.policy_hash())


def test_the_revision_before_is_the_newest_with_another_text() -> None:
    kept = [stored(1, "a"), stored(2, "b"), stored(3, "b")]
    assert previous(kept).revision == 1
    assert find(kept, 2).text == "b"
    with pytest.raises(CommandError, match="only configuration"):
        previous(kept[1:])
    with pytest.raises(CommandError, match="1, 2, 3"):
        find(kept, 9)


def test_a_replica_that_fell_silent_or_runs_no_configuration_is_not_listed() -> None:
    now = 0.0
    replicas = Replicas(lambda: now)
    replicas.receive_presence(beat("dead", 1))
    replicas.receive_presence(beat("agent", 0))
    now = TIMES.service_silent_s + 0.1
    replicas.receive_presence(beat("b", 1))
    replicas.receive_presence(beat("a", 2))
    assert [presence.instance for presence in replicas.living_replicas()] == ["a", "b"]
    assert [presence.instance for presence in behind(replicas.living_replicas(), 2)] == ["b"]


def test_no_worker_is_silent_because_nothing_is_heard() -> None:
    now = 0.0
    replicas = Replicas(lambda: now)
    replicas.receive_presence(beat("a", 1))
    now = 10 * TIMES.service_silent_s
    assert [presence.instance for presence in replicas.living_replicas()] == ["a"]


def test_a_replica_that_takes_no_work_is_not_behind() -> None:
    assert behind([beat("starting", 1, ready=False)], 2) == []
