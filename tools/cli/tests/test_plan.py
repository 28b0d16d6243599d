"""Which processes a stack is made of."""

import json
from pathlib import Path

import pytest

from pointsman_cli.services import SERVICES
from pointsman_cli.stack import plan
from pointsman_cli.stack.plan import EngineUse, Ground, Kind
from pointsman_cli.words import CommandError
from pointsman_core.config import load

GROUND = Ground({"POINTSMAN_NATS_URL": "nats://n"}, 8080, Path("state"))
EVERY = dict.fromkeys(SERVICES, 1)


def test_a_bundle_runs_every_service_and_the_agents_of_the_engines() -> None:
    [gateway] = plan.bundles(EVERY, GROUND, [EngineUse("http://e:8000", "p", "e1")], "secret")
    assert gateway.command[1:] == gateway.services == (*SERVICES, "worker-agent")
    assert json.loads(gateway.env["POINTSMAN_AGENTS"]) == [
        {"engine_url": "http://e:8000", "pool": "p", "worker": "e1", "engine_api_key": "secret"}
    ]
    assert (gateway.port, gateway.env["POINTSMAN_PORT_SHARED"]) == (8080, "false")


def test_two_frontends_are_two_bundles_on_one_port_of_which_one_collects_and_records() -> None:
    first, second = plan.bundles(EVERY | {"frontend": 2}, GROUND, [EngineUse("http://e:8000", "p", "e1")], None)
    assert set(first.services) - set(second.services) == {*plan.SINGLE, "worker-agent"}
    assert [(each.port, each.env["POINTSMAN_PORT_SHARED"]) for each in (first, second)] == [(8080, "true")] * 2


def test_replicas_over_the_bundles_are_processes_of_their_own() -> None:
    _, more = plan.bundles(EVERY | {"scheduler": 2}, GROUND, (), None)
    assert (more.name, more.services) == ("scheduler-2", ("scheduler",))


def test_every_replica_is_a_process_with_its_own_name() -> None:
    counts = dict.fromkeys(SERVICES, 1) | plan.replicas(["scheduler=2"])
    plans = plan.services(counts, GROUND)
    assert {each.name for each in plans} == {*SERVICES} - {"scheduler"} | {"scheduler-1", "scheduler-2"}
    assert len(plans) == len(SERVICES) + 1
    assert [(each.name, each.port) for each in plans if each.kind is Kind.EDGE] == [("frontend", 8080)]
    assert all(each.env["POINTSMAN_NATS_URL"] == "nats://n" for each in plans)


def test_a_stack_can_be_without_a_recorder() -> None:
    counts = dict.fromkeys(SERVICES, 1) | plan.replicas(["recorder=0"])
    assert "recorder" not in {each.name for each in plan.services(counts, GROUND)}


@pytest.mark.parametrize("text", ["nobody=1", "=2"])
def test_replicas_of_an_unknown_service_are_refused_naming_the_services(text: str) -> None:
    with pytest.raises(CommandError, match=r"unknown service.*metrics-collector"):
        plan.replicas([text])


@pytest.mark.parametrize("text", ["scheduler", "scheduler=", "scheduler=0", "scheduler=two"])
def test_a_wrong_number_of_replicas_is_refused_with_the_least_one(text: str) -> None:
    with pytest.raises(CommandError, match="must be 1 or more"):
        plan.replicas([text])


def test_a_process_keeps_the_port_that_it_got() -> None:
    [frontend] = [each for each in plan.services({"frontend": 1}, GROUND) if each.kind is Kind.EDGE]
    assert [frontend.fill_port(port)[1]["POINTSMAN_PORT"] for port in (0, 4711)] == ["0", "4711"]


def test_each_recorder_has_a_folder_and_a_name_of_its_own() -> None:
    plans = plan.services({"recorder": 2}, GROUND)
    told = [(each.env["POINTSMAN_RECORDER_NAME"], each.env["POINTSMAN_STATE_DIR"]) for each in plans]
    assert told == [("recorder-1", "state/recorder-1"), ("recorder-2", "state/recorder-2")]


def test_simulated_engines_are_dealt_to_the_pools_that_take_agents(tmp_path: Path) -> None:
    config = load(
        {
            "pools": {
                "a": {"models": ["m", "sql"], "loras": ["sql"], "block_tokens": 32},
                "b": {"models": ["n"]},
                "c": {"models": ["o"], "discovery": "static", "engines": ["http://x:1"]},
            }
        }
    )
    planned = plan.simulated(config, 3, 2.5, tmp_path)
    assert [(each.name, pool) for each, pool in planned] == [("engine-1", "a"), ("engine-2", "b"), ("engine-3", "a")]
    command = planned[0][0].command
    options = {command[i]: command[i + 1] for i in range(2, len(command), 2)}
    assert (options["--model"], options["--lora"]) == ("m", "sql")
    assert (options["--block-size"], options["--speedup"]) == ("32", "2.5")


def test_a_configuration_that_no_simulated_engine_fits_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CommandError) as caught:
        plan.simulated(load({}), 2, 1, tmp_path)
    assert "--engine" in caught.value.advice


@pytest.mark.parametrize(
    "document",
    [
        {"pools": {"c": {"models": ["o"], "discovery": "static", "engines": ["http://x:1"]}}},
        {"providers": {"far": {"kind": "openai", "base_url": "https://x.example", "credential": "env:KEY"}}},
    ],
)
def test_nothing_is_simulated_where_everybody_is_somewhere_else(document: dict[str, object], tmp_path: Path) -> None:
    assert plan.simulated(load(document), 2, 1, tmp_path) == []


def test_an_agent_knows_its_engine_and_the_key_is_not_on_the_command_line() -> None:
    [agent] = plan.agents([EngineUse("http://e:1", "pool", "engine-1")], {}, "secret")
    assert (agent.env["POINTSMAN_ENGINE_URL"], agent.env["POINTSMAN_POOL"]) == ("http://e:1", "pool")
    assert "secret" not in " ".join(agent.command)
