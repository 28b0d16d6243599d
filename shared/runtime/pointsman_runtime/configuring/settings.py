"""Settings of a process: from the environment (`POINTSMAN_…`) and, with lower precedence, one YAML file.

The file is named by `POINTSMAN_SETTINGS`. A key in it that no setting has is an error that names the settings.
The treatment of requests is configuration (`pointsman.yaml`), not a setting.
"""

import os
import secrets
import socket
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self, TypeVar, cast
from urllib.parse import urlsplit

import yaml
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from pointsman_contracts import timing
from pointsman_contracts.timing import ANNOUNCE_S, BEAT_S, REPORT_S, SNAPSHOT_S
from pointsman_core.wording import wrongs
from pointsman_runtime.configuring.urls import has_host, is_loopback, problem_of, servers, without_login
from pointsman_runtime.reaching.tls_files import TlsFiles, tls_files, words_of

FILE_VARIABLE = "POINTSMAN_SETTINGS"

_IN_JSON = {"tuple_type": '["a", "b"]', "dict_type": '{"a": "b"}'}
"""How what isn't a single value is written in the environment, by pydantic's type of the error when it is not."""


class SettingsError(Exception):
    """The process can't start with these settings; the text is for the person who starts it."""


@dataclass(frozen=True)
class NatsLogin:
    """How to log in at NATS; everything None on a server without accounts. Never logged."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials_file: str | None = None


class ServiceSettings(BaseSettings):
    """Settings of every service. A service with more settings inherits."""

    model_config = SettingsConfigDict(env_prefix="POINTSMAN_", extra="forbid", frozen=True, allow_inf_nan=False)

    nats_url: str = "nats://127.0.0.1:4222"
    """Servers of one cluster, separated by commas; `nats://` or `tls://`."""
    nats_user: str | None = None
    nats_password: SecretStr | None = None
    nats_token: SecretStr | None = None
    nats_credentials_file: Path | None = None
    """A `.creds` file (JWT and seed)."""
    nats_tls_ca: Path | None = None
    """Certificate authority of the server; the system's are used otherwise."""
    nats_tls_cert: Path | None = None
    nats_tls_key: Path | None = None
    nats_insecure: bool = False
    """Allow a server off this host without credentials."""

    http_host: str = "127.0.0.1"
    """Where `/live`, `/ready` and `/metrics` are served."""
    http_port: int = Field(default=0, ge=0, le=65535)
    """0 takes a free port, which the log names."""
    http_open: bool = False
    """Allow `http_host` to be reachable from other hosts, though these paths ask for no credential."""

    log_format: Literal["json", "human"] = "human"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    config: str = "kv"
    """`kv`, or the path of a `pointsman.yaml` for this process alone."""
    instance: str = Field(
        default_factory=lambda: f"{socket.gethostname()[:24]}-{os.getpid()}-{secrets.token_hex(2)}",
        pattern=r"^[A-Za-z0-9._-]{1,80}$",
    )
    """Unique among all processes, and new in every life of a process."""

    otlp_endpoint: str | None = None
    """Base URL of an OTLP/HTTP collector, e.g. `http://127.0.0.1:4318`; no traces leave without it."""
    trace_ratio: float = Field(default=0.01, ge=0, le=1)
    """Share of requests that an edge samples if the client doesn't decide; used only with `otlp_endpoint`."""

    events_max_age_s: float = Field(default=7 * 86400.0, gt=1)
    """How long the event stream keeps an event; used when this process makes the stream."""
    events_max_bytes: int = Field(default=2**30, gt=0)
    """How much the event stream keeps; the oldest go first."""
    events_replicas: int = Field(default=1, ge=1, le=5)
    """Copies of the event stream; 3 in a cluster of three servers."""
    events_known_s: float | None = Field(default=None, gt=0.1)
    """How long the event stream recognizes an event that is sent again, in seconds; used when this process makes the
    stream. Longer than a cluster is without a leader; the servers keep the ids of so long in memory, about 200 bytes
    each. None: 60 where the stream has several copies, else 5."""
    events_kept: int = Field(default=100_000, ge=1)
    """Events that this process holds while the bus is away or the stream takes none, and 64 MiB of them; over that the
    oldest are lost, and counted."""
    buckets_replicas: int = Field(default=1, ge=1, le=5)
    """Copies of the buckets that hold configuration and workers; used when this process makes one."""

    beat_s: float = BEAT_S
    """How often each instance of a service publishes its heartbeat; after three missed ones it is silent. This setting
    and the following three must be the same in every process of a gateway."""
    report_s: float = REPORT_S
    """How often at least each worker's load is reported; after three missed reports the worker is silent."""
    snapshot_s: float = SNAPSHOT_S
    """How often at least each pool's snapshot is published; after three missed ones the pool's state is unknown."""
    announce_s: float = ANNOUNCE_S
    """How often each worker is announced; after three missed announcements, with no load report either, it is gone."""

    drain_timeout_s: float = Field(default=10.0, gt=0)
    """How long the work in hand may take after SIGTERM."""
    linger_s: float = Field(default=0.0, ge=0)
    """How long after SIGTERM a process that listens for clients still takes their connections, so that balancers that
    don't know of its end yet find it. Then the work in hand ends."""

    @field_validator("nats_url")
    @classmethod
    def _refuse_what_is_no_server(cls, url: str) -> str:
        named = servers(url)
        if not named:
            raise ValueError("no server is named; e.g. nats://127.0.0.1:4222")
        for server in named:
            if (problem := problem_of(server)) is not None:
                raise ValueError(f"{without_login(server)}: {problem}")
        return url

    @field_validator("otlp_endpoint")
    @classmethod
    def _refuse_what_is_no_collector(cls, url: str | None) -> str | None:
        if url is not None and not (url.startswith(("http://", "https://")) and has_host(url)):
            raise ValueError("the base URL of a collector is e.g. http://127.0.0.1:4318")
        return url

    @field_validator("nats_credentials_file")
    @classmethod
    def _refuse_a_file_that_isnt_there(cls, path: Path | None) -> Path | None:
        # nats-py would raise at the first connection, and try no other server.
        if path is not None and not path.is_file():
            raise ValueError(f"{path}: the file doesn't exist")
        return path

    @model_validator(mode="after")
    def _refuse_times_that_do_not_fit(self) -> Self:
        problem = timing.problem(**self.times)
        if problem is not None:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _refuse_an_open_door(self) -> Self:
        if not self.nats_insecure and not self._has_login():
            for server in self.nats_servers:
                parts = urlsplit(server)
                if parts.username is None and not is_loopback(parts.hostname or ""):
                    raise ValueError(
                        f"nats_url: {parts.hostname} is not this host and no credentials are set; set "
                        "POINTSMAN_NATS_USER and _PASSWORD, _TOKEN or _CREDENTIALS_FILE, "
                        "or POINTSMAN_NATS_INSECURE=true to do without"
                    )
        if not self.http_open and not is_loopback(self.http_host):
            raise ValueError(
                f"http_host: {self.http_host} is reachable from other hosts and /metrics asks for no credential; "
                "listen on 127.0.0.1, or set POINTSMAN_HTTP_OPEN=true where the network keeps strangers out"
            )
        return self

    @property
    def times(self) -> timing.Intervals:
        """The intervals that all other times derive from."""
        return {
            "beat_s": self.beat_s,
            "report_s": self.report_s,
            "snapshot_s": self.snapshot_s,
            "announce_s": self.announce_s,
        }

    @property
    def nats_servers(self) -> list[str]:
        """The URLs of `nats_url`."""
        return servers(self.nats_url)

    @property
    def nats_login(self) -> NatsLogin:
        """The login as the connection takes it."""
        return NatsLogin(
            user=self.nats_user,
            password=self.nats_password.get_secret_value() if self.nats_password else None,
            token=self.nats_token.get_secret_value() if self.nats_token else None,
            credentials_file=str(self.nats_credentials_file) if self.nats_credentials_file else None,
        )

    def nats_tls(self) -> TlsFiles | None:
        """The files of TLS when it is asked for by URL or by a file. Raises SettingsError for a file of no use."""
        if self.nats_tls_key and not self.nats_tls_cert:
            raise SettingsError(_about("nats_tls_key", "it needs nats_tls_cert too"))
        asked = self.nats_tls_ca or self.nats_tls_cert
        if not asked and not any(server.startswith("tls://") for server in self.nats_servers):
            return None
        try:
            TlsFiles(self.nats_tls_ca).context("")
        except OSError as error:
            raise SettingsError(_about("nats_tls_ca", f"{self.nats_tls_ca}: {words_of(error).lower()}")) from error
        found = tls_files(self.nats_tls_ca, self.nats_tls_cert, self.nats_tls_key)
        try:
            found.context("")
        except OSError as error:
            files = " and ".join(str(path) for path in (self.nats_tls_cert, self.nats_tls_key) if path)
            raise SettingsError(_about("nats_tls_cert", f"{files}: {words_of(error).lower()}")) from error
        return found

    def _has_login(self) -> bool:
        return bool(self.nats_token or self.nats_credentials_file or (self.nats_user and self.nats_password))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment of this service, then that of all, then the file."""
        del env_settings, dotenv_settings, file_secret_settings
        service, others = _LOADED.get()
        own = f"POINTSMAN_{service.upper().replace('-', '_')}_"
        written = {
            name: value for name, value in _written().items() if name in settings_cls.model_fields or name not in others
        }
        return (
            init_settings,
            _Environment(settings_cls, env_prefix=own),
            _Environment(settings_cls),
            InitSettingsSource(settings_cls, written),
        )


class _Environment(EnvSettingsSource):
    """Leaves a value that should be JSON and isn't to the settings, whose error names the variable and an example."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: object) -> object:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


T = TypeVar("T", bound=ServiceSettings)


_LOADED: ContextVar[tuple[str, frozenset[str]]] = ContextVar("loaded", default=("", frozenset()))
"""The service whose settings are read, and the names of settings that others of its process have."""


def load(settings: type[T], service: str = "", others: frozenset[str] = frozenset(), **given: object) -> T:
    """Read the settings; those `given` have precedence. Then come `POINTSMAN_<SERVICE>_<NAME>`, `POINTSMAN_<NAME>` and
    the file, which may name the settings of `others` too. Raises SettingsError with every problem in words."""
    before = _LOADED.set((service, others))
    try:
        return settings(**given)  # pyright: ignore[reportArgumentType] - validated, as everything from outside
    except ValidationError as error:
        known = ", ".join(settings.model_fields)
        lines: list[str] = []
        for wrong in wrongs(error):
            setting, *inside = (str(step) for step in wrong.path or ("",))
            if wrong.kind == "extra_forbidden":
                lines.append(f"{setting}: unknown setting; the known ones are {known}")
                continue
            example = _IN_JSON.get(wrong.kind)
            text = ": ".join((*inside, wrong.text if example is None else f"{wrong.text}, in JSON: {example}"))
            lines.append(_about(setting, text) if setting else text)
        raise SettingsError("\n".join(lines)) from error
    finally:
        _LOADED.reset(before)


def _written() -> dict[str, object]:
    """The settings of the file, if one is named. Raises SettingsError."""
    path = os.environ.get(FILE_VARIABLE)
    if path is None:
        return {}
    try:
        document = cast("object", yaml.safe_load(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise SettingsError(f"{FILE_VARIABLE}={path}: {words_of(error).lower()}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{FILE_VARIABLE}={path}: the file is not UTF-8 text") from error
    # A date or a number that there can't be is a ValueError.
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"{FILE_VARIABLE}={path}: not valid YAML: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise SettingsError(f"{FILE_VARIABLE}={path}: write settings as `name: value`, one per line")
    return {str(name): value for name, value in cast("dict[object, object]", document).items()}


def _about(setting: str, problem: str) -> str:
    return f"{setting} (POINTSMAN_{setting.upper()}): {problem}"
