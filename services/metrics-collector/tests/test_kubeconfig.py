"""Kubeconfigs are read as kubectl reads them."""

import json
import os
import ssl
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pointsman_metrics_collector.adapters.kubernetes.api import connect
from pointsman_metrics_collector.domain.kubernetes.answers import Unreachable
from pointsman_metrics_collector.domain.kubernetes.collections import pods
from pointsman_testing.kube_api import KubeApi
from pointsman_testing.kube_objects import TOKEN, kubeconfig

CERTIFICATES = Path(__file__).with_name("certificates")
PODS = pods("default", {"app": "vllm"})


@pytest.fixture
async def cluster() -> AsyncGenerator[KubeApi]:
    async with KubeApi() as started:
        started.pod("a")
        yield started


def write(file: Path, document: Any) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump(document))
    return file


async def found() -> list[str]:
    """The pods that the current context shows."""
    api = connect(service_account="/nowhere")
    try:
        return [pod.metadata.name for pod in (await api.list_page(PODS)).objects]
    finally:
        await api.close()


async def test_files_of_a_list_are_one_and_the_first_word_counts(
    cluster: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = kubeconfig(cluster.url, TOKEN, "default")
    users, others = {"users": whole["users"]}, {name: whole[name] for name in ("clusters", "contexts")}
    wrong = kubeconfig("http://127.0.0.1:9", "another", "elsewhere") | {"current-context": "double"}
    first = write(tmp_path / "one" / "users", users | {"current-context": "double"})
    files = [first, tmp_path / "missing", write(tmp_path / "rest", others), write(tmp_path / "wrong", wrong)]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))
    assert await found() == ["a"]


async def test_paths_in_a_file_are_meant_from_where_it_is(
    cluster: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = kubeconfig(cluster.url, TOKEN, "default")
    document["users"][0]["user"] = {"tokenFile": "secrets/token"}
    file = write(tmp_path / "far" / "config", document)
    (file.parent / "secrets").mkdir()
    (file.parent / "secrets" / "token").write_text(TOKEN)
    monkeypatch.setenv("KUBECONFIG", str(file))
    assert await found() == ["a"]


async def test_a_clusters_proxy_is_used(cluster: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = kubeconfig("http://api.invalid", TOKEN, "default")
    document["clusters"][0]["cluster"]["proxy-url"] = cluster.url
    monkeypatch.setenv("KUBECONFIG", str(write(tmp_path / "config", document)))
    assert await found() == ["a"]


async def test_the_servers_certificate_may_have_another_name_that_the_kubeconfig_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATES / "named.crt", CERTIFICATES / "api.key")
    async with KubeApi(tls=context) as cluster:
        cluster.pod("a")
        document = kubeconfig(cluster.url, TOKEN, "default")
        document["clusters"][0]["cluster"]["certificate-authority"] = str(CERTIFICATES / "named.crt")
        file = write(tmp_path / "config", document)
        monkeypatch.setenv("KUBECONFIG", str(file))
        with pytest.raises(Unreachable, match="certificate"):
            await found()
        document["clusters"][0]["cluster"]["tls-server-name"] = "kubernetes.internal"
        write(file, document)
        assert await found() == ["a"]


PLUGIN = """
import json, os, sys
told = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
assert told["kind"] == "ExecCredential" and told["spec"]["interactive"] is False, told
with open(sys.argv[1], "a") as asked:
    asked.write(json.dumps(told) + "\\n")
token = open(sys.argv[2]).read()
print(json.dumps({"apiVersion": told["apiVersion"], "kind": "ExecCredential",
                  "status": {"token": token, **json.loads(os.environ["MORE"])}}))
"""


class Plugged:
    """A kubeconfig whose user is known by a credential plugin."""

    def __init__(self, cluster: KubeApi, folder: Path, **changes: Any) -> None:
        self.folder = folder
        (folder / "plugin.py").write_text(PLUGIN)
        (folder / "token").write_text(TOKEN)
        plugin: dict[str, Any] = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(folder / "plugin.py"), str(folder / "asked"), str(folder / "token")],
            "env": [{"name": "MORE", "value": json.dumps(changes.pop("status", {}))}],
            "interactiveMode": "IfAvailable",
        }
        document = kubeconfig(cluster.url, TOKEN, "default")
        document["users"][0]["user"] = {"exec": plugin | changes}
        self.file = write(folder / "config", document)

    @property
    def asked(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "asked").read_text().splitlines()]


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_credential_plugin_is_asked_once_and_gets_its_declared_inputs(
    version: str, cluster: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api_version = f"client.authentication.k8s.io/{version}"
    plugged = Plugged(cluster, tmp_path, apiVersion=api_version, provideClusterInfo=True)
    monkeypatch.setenv("KUBECONFIG", str(plugged.file))
    api = connect(service_account="/nowhere")
    for _ in range(2):
        assert [pod.metadata.name for pod in (await api.list_page(PODS)).objects] == ["a"]
    [told] = plugged.asked
    assert (told["apiVersion"], told["spec"]["cluster"]["server"]) == (api_version, cluster.url)
    cluster.tokens = {"renewed"}
    (tmp_path / "token").write_text("renewed")
    assert (await api.list_page(PODS)).objects, "a token that isn't taken any more is asked for anew"
    await api.close()


async def test_a_plugins_token_is_asked_for_anew_before_it_ends(
    cluster: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugged = Plugged(cluster, tmp_path, status={"expirationTimestamp": "2020-01-01T00:00:00Z"})
    monkeypatch.setenv("KUBECONFIG", str(plugged.file))
    api = connect(service_account="/nowhere")
    for _ in range(2):
        await api.list_page(PODS)
    assert len(plugged.asked) == 2
    await api.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"command": "/no/such/plugin"}, "No such file"),
        ({"args": ["-c", "import sys; sys.exit('who are you')"]}, "ended with 1: who are you"),
        ({"args": ["-c", "print('hello')"]}, "printed no ExecCredential"),
        ({"args": ["-c", "print('{}')"]}, "printed no token"),
        ({"interactiveMode": "Always"}, "needs a terminal"),
        ({"apiVersion": "client.authentication.k8s.io/v9"}, "isn't one of"),
        ({"command": 7}, "exec.command"),
        ({"interactiveMode": 7}, "plugin is invalid"),
    ],
)
async def test_an_error_of_a_plugin_is_reported(
    changes: dict[str, Any], words: str, cluster: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(Plugged(cluster, tmp_path, **changes).file))
    with pytest.raises(Unreachable, match=words):
        await found()
