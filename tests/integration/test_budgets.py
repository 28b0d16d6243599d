"""Keys and budgets on a running gateway: made by the command, held by the services, kept when those are killed."""

import asyncio
import csv
import json
import os
import signal
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from pointsman_contracts.api_key import ApiKeyChanged
from pointsman_contracts.limits import BudgetReached
from pointsman_contracts.subjects import ANY, subject
from pointsman_testing import Processes, eventually
from pointsman_testing.observer import observing

POINTSMAN = str(Path(sys.executable).with_name("pointsman"))
CONFIG = """
pools: {own: {models: [llama], discovery: agents}}
models: {llama: {pool: own, cost: {input: 1000, output: 10000}}}
preprocessing:
  - {use: api-key-auth, stored: true}
  - {use: budget, name: keys, per: [key], claim: budget, soft: 50%}
"""
READY_S = 180

pytestmark = pytest.mark.timeout(480)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    error: dict[str, Any]


class Gateway:
    """A gateway that `pointsman up` runs."""

    def __init__(self, state: dict[str, Any], http: aiohttp.ClientSession) -> None:
        self.state = state
        self._http = http

    async def run(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            POINTSMAN,
            *arguments,
            "--nats",
            self.state["nats"],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode()

    async def ask(self, key: str) -> Answer:
        body = {"model": "llama", "prompt": "Count to three", "max_tokens": 4}
        async with self._http.post(
            f"{self.state['door']}/v1/completions", json=body, headers={"authorization": f"Bearer {key}"}
        ) as answer:
            document = json.loads(await answer.read())
            return Answer(answer.status, dict(answer.headers), document.get("error") or {})


@pytest.mark.requirement("BUDGET-1", "BUDGET-3")
async def test_a_key_is_made_spent_and_revoked_and_what_it_spent_outlives_the_gateways_process(
    processes: Processes, tmp_path: Path
) -> None:
    config = tmp_path / "pointsman.yaml"
    config.write_text(CONFIG)
    folder = tmp_path / "run"
    up = processes.start(
        "pointsman", "up", "--config", str(config), "--run-dir", str(folder),
        "--port", "0", "--nats-port", "0", "--simulated", "1", "--speedup", "20",
    )  # fmt: skip

    def ready() -> bool:
        assert up.returncode is None, up.log_text()
        return (folder / "state.json").exists()

    await eventually(ready, timeout=READY_S)
    state = json.loads((folder / "state.json").read_text())
    async with aiohttp.ClientSession() as http, observing(state["nats"]) as seen:
        gateway = Gateway(state, http)
        made = await gateway.run("keys", "create", "--tenant", "acme", "--name", "ci", "--budget", "0.30/month")
        key = made.splitlines()[0]
        assert key.startswith("pm-")
        assert "No limit" not in made

        async def served() -> bool:
            return (await gateway.ask(key)).status == 200

        await eventually(served)
        assert (await gateway.ask("pm-other")).status == 401

        async def refused() -> Answer | None:
            answer = await gateway.ask(key)
            return answer if answer.status == 402 else None

        answer = await eventually(refused)
        assert (answer.error["type"], answer.error["code"]) == ("insufficient_quota", "insufficient_quota")
        assert "0.30 dollars a month per key" in answer.error["message"]
        assert answer.headers["x-pointsman-budget-limit"] == "0.30"
        assert answer.headers["x-pointsman-budget-reset"].endswith("-01T00:00:00Z")

        gateways = {each["name"]: each["pid"] for each in state["processes"]}
        os.kill(gateways["gateway"], signal.SIGKILL)
        await eventually(lambda: "gateway is ready again" in up.log_text(), timeout=READY_S)

        async def answered() -> Answer | None:
            found = await gateway.ask(key)
            return found if found.status in (200, 402) else None

        again = await eventually(answered)
        assert again.status == 402, "what was spent is known"

        async def spent() -> Decimal | None:
            rows = list(csv.DictReader((await gateway.run("usage", "--by", "day,key", "--csv")).splitlines()))
            sums = {row["key"]: Decimal(row["cost"]) for row in rows}
            # The ledger may lack the last records for a moment.
            assert sums.get("ci") == Decimal("0.30") - left, "the ledger and the budget have the same money"
            return sums["ci"]

        left = Decimal(again.headers["x-pointsman-budget-remaining"])
        await eventually(spent)

        assert "ci" in await gateway.run("keys", "list")
        assert "0.30/month" in await gateway.run("keys", "show", "ci")
        await gateway.run("keys", "revoke", "ci")

        async def gone() -> bool:
            return (await gateway.ask(key)).status == 401

        await eventually(gone)
        changed = [await _last(seen, subject(ApiKeyChanged, ANY)), await _last(seen, subject(BudgetReached, ANY))]
        assert [json.loads(each)[name] for each, name in zip(changed, ("action", "level"), strict=True)] == [
            "revoked",
            "soft",
        ]
        assert key not in "".join(changed)


async def _last(seen: Any, address: str) -> str:
    message = await seen.js.get_last_msg("PM_EVENTS", address)
    return (message.data or b"").decode()
