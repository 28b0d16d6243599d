"""The steps that change an installation, and the laws that hold meanwhile."""

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import yaml
from tests.cluster import credentials
from tests.cluster.client import Client, Sent
from tests.cluster.kube import CHART, CommandFailed, Installation, Object, within
from tests.cluster.table import Table

MODEL: Final = "llama-3.1-8b"
ADAPTER: Final = "sql-lora"
SETTLE_S: Final = 5.0
"""Load before and after a step, so that what comes late counts too."""
WAIT_S: Final = 300.0
FAULTY: Final = "pools:\n  llama-8b: {models: [llama-3.1-8b], schedulling: default}\n"


class Steps:
    """The steps on one installation. Each adds a row to the table, and raises CommandFailed when it can't go on."""

    def __init__(self, installation: Installation, client: Client, table: Table, folder: Path, ready_s: float) -> None:
        self._in = installation
        self._client = client
        self._table = table
        self._folder = folder
        self._ready_s = ready_s
        self._values: list[str] = []
        self.shape = ""

    def install(self, shape: str, *values: str) -> None:
        """Install with these options of Helm, wait, and send the first requests."""
        self.shape, self._values = shape, list(values)
        self._in.helm("install", *values)
        took = self._in.wait_ready(max(WAIT_S, self._ready_s))
        warned = self._in.warnings()
        restarted = sum(self._in.restarts().values())
        self._row("all ready", took <= self._ready_s, f"{took:.0f} s; {warned} warnings, {restarted} restarts")
        self.ask("first request")
        self.ask("first stream", stream=True)

    def test(self) -> None:
        """`helm test`."""
        self._check("helm test", lambda: self._in.helm("test", "--timeout=3m"))

    def ask(self, what: str, model: str = MODEL, *, stream: bool = False, wanted: str = "ok") -> None:
        """One request, which must end as wanted. Engines may be registered some seconds after all is ready."""
        outcome = ""
        began = time.monotonic()

        def ended() -> bool:
            nonlocal outcome
            outcome = self._client.ask(model, stream=stream)
            return outcome.startswith(wanted)

        with contextlib.suppress(CommandFailed):
            within(30, what, ended)
        self._row(what, outcome.startswith(wanted), f"{outcome[:100]}; {time.monotonic() - began:.0f} s")

    def operator(self) -> None:
        """The operator's commands in the cluster, as the documents have them."""
        shell = self._in.shell
        self._check("pointsman doctor", lambda: shell("pointsman", "doctor"))
        self._check("pointsman config history", lambda: shell("pointsman", "config", "history"))
        named = f"explained-{self.shape}"
        self._client.ask(MODEL, request_id=named)
        self._check("pointsman explain", lambda: shell("pointsman", "explain", named))
        if self._in.pods_of("recorder"):
            self._check("pointsman usage", lambda: shell("pointsman", "usage"))

    def configure(self) -> None:
        """Another configuration under load, one without an adapter, and a faulty one."""
        [values] = yaml.safe_load_all((CHART / "values.yaml").read_text())
        text = values["configuration"]
        changed = text.replace("discovery: agents", "discovery: agents, block_tokens: 32")
        path = self._folder / "configuration.yaml"
        path.write_text(changed)
        option = ("--set-file", f"configuration={path}")
        self._loaded("another configuration", lambda: self._applied(*option))
        path.write_text(changed.replace("models: [llama-3.1-8b, sql-lora], loras: [sql-lora]", "models: [llama-3.1-8b]")
                        .replace("  sql-lora: {pool: llama-8b}\n", ""))  # fmt: skip
        self.ask("an adapter", ADAPTER)
        self._applied(*option)
        self.ask("the adapter, taken out of the configuration", ADAPTER, wanted="404")
        path.write_text(FAULTY)
        try:
            self._in.helm("upgrade", *self._values, *option)
        except CommandFailed as refused:
            self._row("a faulty configuration", "schedulling" in str(refused), "refused, Helm says why")
        else:
            self._row("a faulty configuration", False, "Helm didn't refuse it")
        self.ask("after the faulty configuration")
        self._applied()

    def roll_out(self) -> None:
        """Everything at once under load, NATS included."""

        def restart() -> None:
            self._in.kubectl(
                "rollout", "restart", "deployment,statefulset", "--selector", "app.kubernetes.io/part-of=pointsman"
            )
            time.sleep(2)
            self._in.wait_ready(600)

        self._loaded("rollout of everything", restart)

    def reload_logins(self) -> None:
        """The login of a further engine, without a restart of any server."""
        before = self._in.restarts()

        def told() -> bool:
            pods = self._in.pods_of("nats")
            logs = [self._in.kubectl("logs", pod, "--container", "reload") for pod in pods]
            return all("told the server" in text for text in logs)

        def apply() -> None:
            credentials.apply_logins(self._in, self._folder / "logins", engines=credentials.ENGINES + 1)
            within(180, "the servers reload", told)

        self._loaded("another login", apply)
        self._row("servers restarted for it", before == self._in.restarts(), "none")

    def delete(self, names: Sequence[str]) -> None:
        """One pod of each part, gracefully and by force."""
        for name in names:
            self._loaded(f"{name} deleted", lambda name=name: self._delete(name))
            # Its own sockets end with a pod that is killed.
            self._loaded(
                f"{name} killed", lambda name=name: self._delete(name, "--force", "--grace-period=0"), cut=True
            )

    def kill_leader(self) -> None:
        """The server that leads JetStream, by force."""

        def leader() -> str:
            [pod, *_] = self._in.pods_of("nats")
            fetch = ("wget", "-qO-", "http://127.0.0.1:8222/jsz")
            document: Object = json.loads(self._in.kubectl("exec", pod, "--container", "service", "--", *fetch))
            return document.get("meta_cluster", {}).get("leader", pod)

        def kill() -> None:
            self._in.kubectl("delete", "pod", leader(), "--force", "--grace-period=0")
            time.sleep(2)
            self._in.wait_ready(WAIT_S)

        self._loaded("NATS leader killed", kill)

    def scale(self) -> None:
        """Frontends and engines, up and down."""

        def scale() -> None:
            for kind, name in (("deployment", self._edge()), ("statefulset", "pointsman-engine")):
                found = self._in.objects(kind, "--field-selector", f"metadata.name={name}")
                # Back to the number of the values: Helm refuses to change one that another wrote.
                for count in [count for each in found for count in (credentials.ENGINES, each["spec"]["replicas"])]:
                    self._in.kubectl("scale", kind, name, f"--replicas={count}")
                    self._in.wait_ready(WAIT_S)
                    time.sleep(SETTLE_S)

        self._loaded("scaled up and down", scale)
        self._applied()

    def drain(self) -> None:
        """A node that has pods of ours, emptied and taken back."""
        nodes = sorted({each["spec"]["nodeName"] for each in self._in.objects("pods") if "nodeName" in each["spec"]})
        client = self._client.node()
        node = next((each for each in nodes if each != client), None)
        if node is None or len(nodes) < 3:
            return

        def drain() -> None:
            try:
                options = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s", "--force")
                selector = "--pod-selector=app.kubernetes.io/part-of=pointsman"
                self._in.kubectl("drain", node, *options, selector, timeout_s=260)
                time.sleep(SETTLE_S)
            finally:
                self._in.kubectl("uncordon", node)
            self._in.wait_ready(WAIT_S)

        self._loaded("a node drained", drain)

    def change_shape(self, shape: str, between: tuple[str, ...], after: tuple[str, ...]) -> None:
        """To another shape: refused in one step, lossless in two."""
        try:
            self._in.helm("upgrade", *after)
        except CommandFailed as refused:
            self._row(f"to {shape} in one step", "two upgrades" in str(refused), "refused, Helm says how")
        else:
            self._row(f"to {shape} in one step", False, "Helm didn't refuse it")

        def change() -> None:
            for values in (between, after):
                self._values = list(values)
                self._applied()

        self._loaded(f"to {shape} in two steps", change)
        self.shape = shape

    def uninstall(self) -> None:
        """Everything of the release goes; the volumes stay until they are deleted."""
        self._in.helm("uninstall", "--wait")
        within(
            WAIT_S,
            "the pods end",
            lambda: (
                not self._in.objects(
                    "pods", "--selector", "app.kubernetes.io/part-of=pointsman,app.kubernetes.io/name!=pointsman-doctor"
                )
            ),
        )
        volumes = self._in.objects("persistentvolumeclaims")
        left = self._in.objects("deployments,statefulsets,services,jobs,networkpolicies")
        self._in.kubectl("delete", "persistentvolumeclaims", "--all")
        self._in.kubectl("delete", "pods", "--all", "--ignore-not-found")
        self._row("uninstalled", not left and bool(volumes), f"{len(volumes)} volumes stay, {len(left)} other objects")

    def _applied(self, *options: str) -> None:
        self._in.helm("upgrade", *self._values, *options)
        time.sleep(1)
        self._in.wait_ready(WAIT_S)
        within(WAIT_S, "the configuration's Job", lambda: not self._unfinished())
        self._in.shell("pointsman", "config", "status")

    def _unfinished(self) -> list[str]:
        jobs = self._in.objects("jobs", "--selector", "app.kubernetes.io/name=pointsman-configuration")
        return [each["metadata"]["name"] for each in jobs if not each["status"].get("succeeded")]

    def _delete(self, name: str, *how: str) -> None:
        [pod, *_] = self._in.pods_of(name)
        self._in.kubectl("delete", "pod", pod, "--wait=false", *how)
        time.sleep(2)
        self._in.wait_ready(WAIT_S)

    def _edge(self) -> str:
        return "pointsman-gateway" if self._in.pods_of("gateway") else "pointsman-frontend"

    def _loaded(self, what: str, action: Callable[[], None], *, cut: bool = False) -> None:
        """Do it while requests come. `cut`: connections to the pod itself may end."""
        began = time.monotonic()
        problem = ""
        with self._client.load() as sent:
            time.sleep(SETTLE_S)
            try:
                action()
            except CommandFailed as error:
                problem = f"; {error}"
            took = time.monotonic() - began - SETTLE_S
            time.sleep(SETTLE_S)
        self._row(what, not problem and _well(sent, cut=cut), f"{sent}; {took:.0f} s{problem}")

    def _check(self, what: str, command: Callable[[], str]) -> None:
        began = time.monotonic()
        try:
            command()
        except CommandFailed as error:
            self._row(what, False, str(error))
        else:
            self._row(what, True, f"{time.monotonic() - began:.0f} s")

    def _row(self, what: str, well: bool, result: str) -> None:
        self._table.add(self.shape, what, well, result)


def _well(sent: Sent, *, cut: bool) -> bool:
    return bool(sent.requests) and sent.failed - (sent.cut if cut else 0) == 0
