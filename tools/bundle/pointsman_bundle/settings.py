"""Settings of a bundle's process, beside those of the services in it."""

from pydantic import JsonValue

from pointsman_runtime.configuring.settings import ServiceSettings


class BundleSettings(ServiceSettings):
    """`POINTSMAN_<NAME>` in the environment. A setting of one service alone is `POINTSMAN_<SERVICE>_<NAME>`."""

    agents: tuple[dict[str, JsonValue], ...] = ()
    """Settings of each worker-agent, e.g. `[{"engine_url": "http://10.0.0.7:8000", "pool": "p", "worker": "w"}]`;
    without any, a bundle with a worker-agent has one, with the settings of the environment."""
