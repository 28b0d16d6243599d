"""Wiring of the preprocessor."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

from prometheus_client import CollectorRegistry

from pointsman_apis.grown_bodies import GrownBodies
from pointsman_contracts.journey import PreprocessRequest
from pointsman_hosting.host import run
from pointsman_hosting.program import Program
from pointsman_hosting.service import Service
from pointsman_journey.content_client import ContentClient
from pointsman_plugins.preprocessing import Ports
from pointsman_preprocessor.adapters.cluster_rules import ClusterRules
from pointsman_preprocessor.adapters.followed_lent import FollowedLent
from pointsman_preprocessor.adapters.limits import SharedLimits
from pointsman_preprocessor.adapters.published_keys import PublishedKeys
from pointsman_preprocessor.adapters.stored_keys import FollowedKeys
from pointsman_preprocessor.configuration import compile_pipeline
from pointsman_preprocessor.handlers import Handlers, bounded
from pointsman_preprocessor.settings import PreprocessorSettings
from pointsman_preprocessor.tokenizer_files import TokenizerFiles
from pointsman_runtime.jetstream.stores import POOLS_BUCKET


def build(service: Service[PreprocessorSettings]) -> None:
    """Construct everything; connect to nothing."""
    threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="large-bodies")
    files = TokenizerFiles(service.settings.token_cache)
    key_sets = PublishedKeys()
    limits = SharedLimits(service)
    lent = FollowedLent(service.open_bucket)
    ports = Ports(FollowedKeys(service.open_bucket), key_sets, limits.limiter, lent)
    configuration = service.configuration(
        partial(compile_pipeline, load=files.load_tokenizer, ports=ports, bound=bounded)
    )
    cluster = ClusterRules(service.open_bucket(POOLS_BUCKET))
    configuration.on_change(lambda revision: cluster.pass_rules_to(revision.compiled.names))
    configuration.on_change(limits.apply_limits)
    handler = partial(
        Handlers,
        configuration,
        thread_above=service.settings.thread_above,
        tokenize_in_thread_above=service.settings.tokenize_in_thread_above,
        max_values=service.settings.max_values,
        threads=threads,
        fetch=partial(ContentClient(service.journeys).fetch_body, original=True),
    )
    handlers = handler(
        service.registry,
        bodies=GrownBodies(service.settings.body_cache) if service.settings.body_cache else None,
        limiter=limits.limiter,
        tell=lambda tokens, edge: service.bus.publish(tokens, edge),
        # Metrics of dry runs have a registry of their own, which no page shows. A dry run leaves no body behind.
        dry_runs=handler(CollectorRegistry()),
    )
    service.journeys.stage(PreprocessRequest, handlers.preprocess)
    service.every(1.0, key_sets.read_due_sets)

    async def follow_cluster() -> None:
        await cluster.start(configuration.current.config)

    service.on_start(follow_cluster)

    async def close() -> None:
        await key_sets.close()
        threads.shutdown(wait=False)

    service.on_stop(close)


PROGRAM = Program("preprocessor", PreprocessorSettings, build)


def main() -> int:
    """Run the service; returns its exit code."""
    return run(PROGRAM)
