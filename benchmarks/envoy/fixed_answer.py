"""The adapter with a decision that is always the same: `python -m benchmarks.envoy.fixed_answer <port file>`."""

import asyncio
import gc
import sys
from collections.abc import Callable
from pathlib import Path

import uvloop
from prometheus_client import CollectorRegistry

from pointsman_contracts.journey import PreprocessRequest, Target
from pointsman_contracts.message import Message
from pointsman_contracts.reply import ChosenEndpoint, Decision
from pointsman_core.config import load
from pointsman_edge.deciding.policy import compile_policy
from pointsman_edge.edge import Surroundings
from pointsman_epp_adapter.main import EppAdapter
from pointsman_epp_adapter.settings import EppAdapterSettings
from pointsman_runtime.telling.telemetry import Tracing
from pointsman_testing.fake_stages import FakeReviewers, FakeStages

TARGET = Target(model="fixed-model", pool="pool")
ENDPOINTS = tuple(ChosenEndpoint(worker=f"worker-{n}", url=f"http://10.0.0.{n}:8000") for n in (1, 2, 3))


class FixedDecision(FakeStages):
    """Decides at once."""

    async def ask(self, request: PreprocessRequest, body: bytes, policy: object, traceparent: str | None) -> Decision:
        """See `Stages.ask`."""
        del body, policy, traceparent
        return Decision(
            request_id=request.request_id,
            revision=1,
            profile="standard",
            model="fixed-model",
            target=TARGET,
            endpoints=ENDPOINTS,
            scheduler="fixed",
        )


class EncodedEvents:
    """Encodes events as the bus does, and drops them."""

    def publish(self, message: Message, *route: str, again: bool = False) -> None:
        """See `Bus.publish`."""
        del route, again
        message.encode()

    def hasten(self) -> None:
        """See `Bus.hasten`. Nothing waits."""

    def await_event(self, message: Message, *route: str, done: Callable[[], None]) -> None:
        """See `Bus.await_event`. Nothing waits."""
        del message, route
        done()

    def tell(self, message: Message, *route: str) -> None:
        """See `Bus.tell`."""
        del message, route


async def serve(port_file: Path) -> None:
    """Serve until killed."""
    compiled = compile_policy(load({"pools": {"pool": {"models": ["fixed-model"]}}}), 1)
    adapter = EppAdapter(
        Surroundings(
            instance="epp-1",
            policy=lambda: compiled,
            stages=FixedDecision(),
            reviewers=FakeReviewers(),
            bus=EncodedEvents(),
            tracing=Tracing(),
            registry=CollectorRegistry(),
        ),
        EppAdapterSettings.model_validate({"instance": "epp-1", "port": 0}),
    )
    await adapter.server.start()
    # As a service does once it is ready.
    gc.collect()
    gc.freeze()
    await asyncio.to_thread(port_file.write_text, adapter.server.url.rpartition(":")[2])
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1])))
