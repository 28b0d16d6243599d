"""Wiring of the preprocessor."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

from pointsman_contracts.journey import PreprocessRequest
from pointsman_core.config import Config, ConfigError
from pointsman_core.plugins import PluginError, Registry
from pointsman_preprocessor.adapters.cluster_rules import ClusterRules
from pointsman_preprocessor.adapters.limits import Limits
from pointsman_preprocessor.adapters.published_keys import PublishedKeys
from pointsman_preprocessor.adapters.stored_keys import StoredKeys
from pointsman_preprocessor.domain.pipeline import Pipeline, registry
from pointsman_preprocessor.domain.processing import Ports, RequestProcessor
from pointsman_preprocessor.handlers import Handlers, bounded
from pointsman_preprocessor.plugins import BUILTIN
from pointsman_preprocessor.settings import PreprocessorSettings
from pointsman_preprocessor.tokenizer_files import TokenizerFiles
from pointsman_runtime.buckets import POOLS_BUCKET
from pointsman_runtime.service import Service, run


@cache
def processors() -> Registry[RequestProcessor]:
    """The types that this environment has; looked up once, because searching all distributions takes milliseconds."""
    return registry(BUILTIN)


def compile_pipeline(
    config: Config, revision: int = 0, files: TokenizerFiles | None = None, ports: Ports | None = None
) -> Pipeline:
    """The `preprocessing` section, ready to run; without `files` it has no tokenizers, without `ports` its processors
    ask nobody. Raises ConfigError that names the processor or the tokenizer."""
    del revision
    try:
        return Pipeline(config, processors(), None if files is None else files.load, ports, bounded)
    except PluginError as error:
        raise ConfigError.at("preprocessing", error) from error


def check(config: Config) -> None:
    """Raise ConfigError when this service would refuse the configuration; tokenizers are on its own disk."""
    compile_pipeline(config)


def build(service: Service[PreprocessorSettings]) -> None:
    """Construct everything; connect to nothing."""
    threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="large-bodies")
    files = TokenizerFiles(service.settings.token_cache)
    key_sets = PublishedKeys()
    limits = Limits(service)
    ports = Ports(StoredKeys(service.bucket), key_sets, limits.limiter)
    configuration = service.configuration(partial(compile_pipeline, files=files, ports=ports))
    cluster = ClusterRules(service.bucket(POOLS_BUCKET))
    configuration.on_change(lambda revision: cluster.inform(revision.compiled.names))
    configuration.on_change(limits.configured)
    handlers = Handlers(
        configuration,
        service.registry,
        thread_above=service.settings.thread_above,
        tokenize_in_thread_above=service.settings.tokenize_in_thread_above,
        max_values=service.settings.max_values,
        threads=threads,
        limiter=limits.limiter,
        tell=lambda tokens, edge: service.bus.publish(tokens, edge),
    )
    service.bus.stage(PreprocessRequest, handlers.preprocess)
    service.every(1.0, key_sets.tick)

    async def follow_cluster() -> None:
        await cluster.start(configuration.current.config)

    service.on_start(follow_cluster)

    async def close() -> None:
        await key_sets.close()
        threads.shutdown(wait=False)

    service.on_stop(close)


def main() -> int:
    """Run the service; returns its exit code."""
    return run("preprocessor", PreprocessorSettings, build)
