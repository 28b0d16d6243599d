"""Kubeconfigs as kubectl reads them: a list of files, merged, with what lightkube leaves out of them.

https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/#merging-kubeconfig-files
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, cast

import yaml
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from pointsman_metrics_collector.domain.kubernetes.answers import Unreachable

_FILES: Final = {
    "cluster": ("certificate-authority",),
    "user": ("client-certificate", "client-key", "tokenFile"),
    "context": (),
}
"""Members of an entry that are paths, relative to its file."""

Entry = dict[str, JsonValue]


class Variable(BaseModel):
    """A variable of a plugin's environment."""

    name: str
    value: str


class ExecPlugin(BaseModel):
    """A command that prints credentials (`client.authentication.k8s.io`)."""

    model_config = ConfigDict(extra="ignore")

    api_version: str = Field(alias="apiVersion")
    command: str
    args: list[str] | None = None
    env: list[Variable] | None = None
    interactive_mode: str = Field(default="IfAvailable", alias="interactiveMode")
    provide_cluster_info: bool = Field(default=False, alias="provideClusterInfo")


class Access(NamedTuple):
    """The address of a cluster, and the credentials for it."""

    config: SingleConfig
    proxy: str | None = None
    server_name: str = ""
    """The name that the server's certificate must have; empty for the host that is connected to."""
    plugin: ExecPlugin | None = None
    cluster: Mapping[str, JsonValue] = MappingProxyType({})
    """The cluster's entry, for a plugin that asks for it."""


class _Named(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str


class _File(BaseModel):
    model_config = ConfigDict(extra="ignore")

    current_context: str | None = Field(default=None, alias="current-context")
    clusters: list[_Named] | None = None
    users: list[_Named] | None = None
    contexts: list[_Named] | None = None


def paths() -> list[Path]:
    """The files of `KUBECONFIG`, else the usual one."""
    named = [part for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return [Path(part).expanduser() for part in named or [DEFAULT_KUBECONFIG]]


def read(files: Iterable[Path]) -> Access:
    """The current context of these files: of two entries with one name the first counts, a missing file is skipped.

    Raises Unreachable, ConfigError, OSError, and yaml.YAMLError.
    """
    files = list(files)
    there = [file for file in files if file.is_file()]
    if not there:
        raise ConfigError(f"the kubeconfig {', '.join(map(str, files))} doesn't exist")
    current = ""
    entries: dict[str, dict[str, Entry]] = {kind: {} for kind in _FILES}
    for file in there:
        document = _parsed(file)
        current = current or document.current_context or ""
        for kind, found in entries.items():
            for each in cast("list[_Named] | None", getattr(document, f"{kind}s")) or ():
                entry = (each.model_extra or {}).get(kind)
                if isinstance(entry, dict):
                    found.setdefault(each.name, _absolute(kind, cast("Entry", entry), file.parent))
    merged: dict[str, object] = {"current-context": current or None}
    for kind, found in entries.items():
        merged[f"{kind}s"] = [{"name": name, kind: each} for name, each in found.items()]
    config = KubeConfig.from_dict(merged).get()  # pyright: ignore[reportUnknownMemberType] - untyped in lightkube
    if config is None:
        raise Unreachable("the kubeconfig names no current context")
    return _access(config, entries)


def _access(config: SingleConfig, entries: Mapping[str, Mapping[str, Entry]]) -> Access:
    cluster = entries["cluster"][config.context.cluster]
    user = entries["user"].get(config.context.user or "", {})
    proxy = cluster.get("proxy-url")
    name = cluster.get("tls-server-name")
    plugin = user.get("exec")
    try:
        return Access(
            config,
            str(proxy) if proxy else None,
            str(name) if name else "",
            None if plugin is None else ExecPlugin.model_validate(plugin),
            cluster,
        )
    except ValidationError:
        raise Unreachable(
            "the kubeconfig's credential plugin is invalid: apiVersion and command must be strings"
        ) from None


def _parsed(file: Path) -> _File:
    try:
        return _File.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")) or {})
    except (ValidationError, UnicodeDecodeError):
        raise ConfigError(f"{file} isn't a kubeconfig") from None


def _absolute(kind: str, entry: Entry, folder: Path) -> Entry:
    changed: Entry = {
        name: str(folder / value) for name in _FILES[kind] if isinstance(value := entry.get(name), str) and value
    }
    plugin = entry.get("exec")
    if isinstance(plugin, dict) and isinstance(command := plugin.get("command"), str) and os.sep in command:
        changed["exec"] = {**plugin, "command": str(folder / command)}
    return {**entry, **changed}
