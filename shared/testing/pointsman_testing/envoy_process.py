"""The real Envoy as a process of a test."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from pointsman_testing.eventually import eventually
from pointsman_testing.processes import READY_TIMEOUT_S, Processes


async def start_envoy(processes: Processes, executable: str, document: Mapping[str, Any], folder: Path) -> str:
    """Run Envoy with this configuration, whose listener `gateway` may have any port; returns the URL of that one."""
    (folder / "envoy.yaml").write_text(yaml.safe_dump(document))
    admin = folder / "admin"
    processes.start_command(
        [
            executable, "--config-path", str(folder / "envoy.yaml"), "--admin-address-path", str(admin),
            "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning",
        ]
    )  # fmt: skip
    async with aiohttp.ClientSession() as http:

        async def listening() -> str | None:
            if not admin.exists() or not admin.read_text():
                return None
            async with http.get(f"http://{admin.read_text().strip()}/listeners") as answer:
                name, _, address = (await answer.text()).strip().partition("::")
            return f"http://{address}" if name == "gateway" and not address.endswith(":0") else None

        return await eventually(listening, timeout=READY_TIMEOUT_S)
