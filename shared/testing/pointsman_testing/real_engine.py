"""A vLLM server as the stack's engines are: started, killed, restarted at its address, and spoken for by an agent."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import aiohttp

from pointsman_testing import eventually
from pointsman_testing.ports import free_port
from pointsman_testing.processes import Processes
from pointsman_testing.stack import EngineProcess, ServedPool

BLOCK: Final = 32
"""Tokens; vLLM on CPUs has no smaller one."""
CACHE_GIB: Final = 1
START_S: Final = 1200.0
MODEL: Final = "tiny"
POOL: Final = ServedPool("tiny", (MODEL,), ())

ENVIRONMENT: Final = {
    "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    # Sleep, wake-up and a reset of the cache have paths of their own only so.
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_USE_V1": "1",
}


class RealEngine(EngineProcess):
    """One vLLM server, or one that runs elsewhere (`url`)."""

    def __init__(
        self,
        name: str,
        processes: Processes,
        folder: Path,
        *,
        environment: Path | None = None,
        model: Path | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        role: str = "both",
        url: str | None = None,
        ranks: int = 1,
    ) -> None:
        """`env`: beside `ENVIRONMENT`; `role`: as `WorkerRegistration.role`; `ranks`: data-parallel ones."""
        super().__init__(name, processes, folder, 1.0, served=POOL._replace(ranks=ranks))
        self._environment = environment
        self._model = model
        self._options = list(options)
        self._env = {**ENVIRONMENT, **(env or {})}
        self.role = role
        self._fixed_url = url
        # vLLM binds such an endpoint; to `tcp://127.0.0.1:…` it would connect.
        self._kv = tuple(f"ipc://{folder / name}.{which}" for which in ("kv", "replay"))
        if ranks > 1:  # each has the ports after the last one's
            self._kv = tuple(f"tcp://*:{free_port(ranks - 1)}" for _ in self._kv)
            self._options += ["--data-parallel-size", str(ranks)]
        self._running = False

    @property
    def url(self) -> str:
        """Base URL."""
        return self._fixed_url or super().url

    @property
    def external(self) -> bool:
        """Whether it runs elsewhere and can't be restarted."""
        return self._fixed_url is not None

    async def start(self) -> None:
        """Start it if it doesn't run, and wait until it is ready."""
        if self._running:
            return
        if self._fixed_url is not None:
            self._kv = await self._kv_of_other()
            self._running = True
            return
        if self._environment is None:
            raise ValueError("an engine is started from an environment, or has a url")
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self._kv[0],
            "replay_endpoint": self._kv[1],
        }
        # The lowest priority: an engine that computes shall not starve the gateway that is under test.
        command = [
            "nice", "-n", "10", str(self._environment / "bin/python"), "-m",
            "vllm.entrypoints.openai.api_server", "--model", str(self._model), "--served-model-name", MODEL,
            "--host", "127.0.0.1", "--port", str(self._port), "--enforce-eager", "--block-size", str(BLOCK),
            "--dtype", "float32", "--max-model-len", "8192", "--enable-prompt-tokens-details", "--enable-lora",
            "--max-loras", "2", "--max-lora-rank", "8", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
            "--kv-events-config", json.dumps(events), *self._options,
        ]  # fmt: skip
        self.process = self._processes.start_command(command, env=self._env)
        self._running = True
        await self.wait_healthy()

    async def wait_healthy(self) -> None:
        """Wait until `/health` answers. Fails at once when the process ends."""
        async with aiohttp.ClientSession() as http:

            async def healthy() -> bool:
                if not self.external and self.process.returncode is not None:
                    raise RuntimeError(f"vLLM ended:\n{self.process.log_text()[-3000:]}")
                try:
                    async with http.get(f"{self.url}/health", timeout=aiohttp.ClientTimeout(5)) as answer:
                        return answer.status == 200
                except (aiohttp.ClientError, TimeoutError):
                    return False

            await eventually(healthy, timeout=START_S)

    def start_agent(self, env: Mapping[str, str]) -> None:
        """Start the agent; it hears the engine's KV events where they are known."""
        told = {} if not self._kv else {
            "POINTSMAN_KV_EVENTS": self._kv[0].replace("*", "127.0.0.1"),
            "POINTSMAN_KV_REPLAY": self._kv[1].replace("*", "127.0.0.1"),
            "POINTSMAN_KV_BLOCK_TOKENS": str(BLOCK),
        }  # fmt: skip
        self.agent = self._processes.fork(
            "pointsman-worker-agent",
            env={
                **env,
                "POINTSMAN_ENGINE_URL": self.url,
                "POINTSMAN_POOL": POOL.pool,
                "POINTSMAN_WORKER": self.name,
                "POINTSMAN_ROLE": self.role,
                **told,
            },
        )

    async def restart(self) -> None:
        """SIGKILL it and start it on the same port."""
        self.process.kill()
        self._running = False
        await self.start()

    def kill(self) -> None:
        """SIGKILL all its processes."""
        self.process.kill()
        self._running = False

    async def _kv_of_other(self) -> tuple[str, ...]:
        """The KV event endpoints of an engine that runs elsewhere, in vLLM's form; empty without KV events."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.url}/kv_event_sources") as answer:
            sources: dict[str, dict[str, str]] = await answer.json() if answer.status == 200 else {}
        first = sources.get("0", {})
        return tuple(first[name] for name in ("endpoint", "replay_endpoint") if first.get(name))

    async def post(self, path: str, body: object = None) -> int:
        """Send a command to the engine itself; the status."""
        async with aiohttp.ClientSession() as http, http.post(f"{self.url}{path}", json=body) as answer:
            return answer.status
