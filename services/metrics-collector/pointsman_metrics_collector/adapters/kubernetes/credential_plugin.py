"""Credentials that a command prints:
https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins

lightkube runs only those of `v1alpha1` and `v1beta1`, and passes them no facts.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from typing import Final

import httpx2
from lightkube.core.exceptions import ConfigError
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from pointsman_metrics_collector.adapters.kubernetes.kubeconfig import ExecPlugin

VERSIONS: Final = tuple(f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha1"))
TIMEOUT_S: Final = 30.0
EARLY_S: Final = 10.0
"""Seconds before a token's end at which a new one is requested."""
_LONGEST: Final = 300
_TOLD: Final = ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url")
"""Facts about the cluster, for a plugin that asks for them."""


class _Status(BaseModel):
    model_config = ConfigDict(extra="ignore")

    token: str | None = None
    expires: datetime | None = Field(default=None, alias="expirationTimestamp")


class _Credential(BaseModel):
    model_config = ConfigDict(extra="ignore")

    status: _Status = _Status()


class PluginAuth(httpx2.Auth):
    """Runs the plugin when no token is known, before the token expires, and when the server rejects it.

    Raises ConfigError with the problem.
    """

    def __init__(self, plugin: ExecPlugin, cluster: Mapping[str, JsonValue]) -> None:
        if plugin.api_version not in VERSIONS:
            raise ConfigError(
                f"the credential plugin's apiVersion {plugin.api_version} isn't one of {', '.join(VERSIONS)}"
            )
        if plugin.interactive_mode == "Always":
            raise ConfigError("the credential plugin needs a terminal (interactiveMode: Always)")
        self._plugin: Final = plugin
        self._environment: Final = {
            **{each.name: each.value for each in plugin.env or ()},
            "KUBERNETES_EXEC_INFO": json.dumps(_told(plugin, cluster)),
        }
        self._token = ""
        self._ends_at: float | None = None

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if self._token and (self._ends_at is None or time.time() < self._ends_at - EARLY_S):
            request.headers["Authorization"] = f"Bearer {self._token}"
            answer = yield request
            if answer.status_code != 401:
                return
        await self._ask_plugin()
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request

    async def _ask_plugin(self) -> None:
        status = _read(await self._run())
        if not status.token:
            raise ConfigError("the credential plugin printed no token; client certificates of plugins aren't supported")
        self._token = status.token
        self._ends_at = None if status.expires is None else status.expires.timestamp()

    async def _run(self) -> bytes:
        command = [self._plugin.command, *(self._plugin.args or ())]
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, **self._environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                printed, complaint = await process.communicate()
        except TimeoutError:
            raise ConfigError(f"the credential plugin {command[0]} took longer than {TIMEOUT_S:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            words = complaint.decode("utf-8", "replace").strip()[:_LONGEST]
            raise ConfigError(f"the credential plugin {command[0]} ended with {process.returncode}: {words}")
        return printed


def _read(printed: bytes) -> _Status:
    try:
        return _Credential.model_validate_json(printed).status
    except ValidationError:
        raise ConfigError("the credential plugin printed no ExecCredential") from None


def _told(plugin: ExecPlugin, cluster: Mapping[str, JsonValue]) -> dict[str, object]:
    spec: dict[str, object] = {"interactive": False}
    if plugin.provide_cluster_info:
        spec["cluster"] = {name: cluster[name] for name in _TOLD if name in cluster}
    return {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
