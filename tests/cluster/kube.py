"""A cluster by its own commands, `kubectl` and `helm` of PATH, and one installation of the chart in it."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "deploy/helm/pointsman"
RELEASE: Final = "pointsman"
LOOK_S: Final = 0.5

Object = dict[str, Any]


class CommandFailed(Exception):
    """A command of the cluster's ended with an error; its text is what the command printed."""


def run(command: Sequence[str], text: str | None = None, timeout_s: float = 300) -> str:
    """The standard output. Raises CommandFailed."""
    try:
        ran = subprocess.run(command, check=False, capture_output=True, text=True, input=text, timeout=timeout_s)
    except subprocess.TimeoutExpired as late:
        raise CommandFailed(f"{' '.join(command)}: no end after {timeout_s:.0f} s") from late
    if ran.returncode:
        raise CommandFailed(f"{' '.join(command)}: {ran.stderr.strip() or ran.stdout.strip()}")
    return ran.stdout


def within(seconds: float, what: str, condition: Callable[[], object]) -> float:
    """Wait until the condition holds; returns the seconds that it took. Raises CommandFailed."""
    began = time.monotonic()
    problem = ""
    while time.monotonic() - began < seconds:
        try:
            if condition():
                return time.monotonic() - began
        except CommandFailed as error:
            problem = f": {error}"
        time.sleep(LOOK_S)
    raise CommandFailed(f"{what}: not within {seconds:.0f} s{problem}")


class Installation:
    """The namespace of an installation. `prefix` is that of the images, `version` their tag."""

    def __init__(self, namespace: str, prefix: str, version: str) -> None:
        self.namespace = namespace
        self.prefix = prefix
        self.version = version

    def kubectl(self, *words: str, text: str | None = None, timeout_s: float = 300) -> str:
        """Run in the namespace."""
        return run(["kubectl", "--namespace", self.namespace, *words], text, timeout_s)

    def helm(self, verb: str, *words: str) -> str:
        """Run for the release; `install` and `upgrade` get the chart and the images."""
        command = ["helm", "--namespace", self.namespace, verb, RELEASE]
        if verb in ("install", "upgrade"):
            command += [str(CHART), "--set", f"image.prefix={self.prefix},image.tag={self.version}"]
        return run([*command, *words])

    def objects(self, kinds: str, *words: str) -> list[Object]:
        """Objects of these kinds."""
        return json.loads(self.kubectl("get", kinds, "--output", "json", *words))["items"]

    def image(self, member: str) -> str:
        """The image of a member of this repository."""
        return f"{self.prefix}pointsman/{member}:{self.version}"

    def unready(self) -> list[str]:
        """Deployments and StatefulSets whose copies aren't all ready and of the newest version."""
        found: list[str] = []
        for each in self.objects("deployments,statefulsets"):
            wanted, status = each["spec"]["replicas"], each["status"]
            current = status.get("observedGeneration", 0) >= each["metadata"]["generation"]
            counts = {status.get(key, 0) for key in ("replicas", "readyReplicas", "updatedReplicas")}
            if not current or counts != {wanted}:
                found.append(each["metadata"]["name"])
        return found

    def wait_ready(self, seconds: float) -> float:
        """Seconds until everything is ready. Raises CommandFailed with the names of the others."""
        try:
            return within(seconds, "everything ready", lambda: not self.unready())
        except CommandFailed as error:
            raise CommandFailed(f"{error}; not ready: {', '.join(self.unready())}") from error

    def restarts(self) -> dict[str, int]:
        """Containers that were started again, by pod."""
        return {
            pod["metadata"]["name"]: count
            for pod in self.objects("pods")
            if (count := sum(each["restartCount"] for each in pod["status"].get("containerStatuses", [])))
        }

    def warnings(self) -> int:
        """How often the cluster warned about an object of the namespace."""
        events = self.objects("events", "--field-selector", "type=Warning")
        return sum(each.get("count") or 1 for each in events)

    def pods_of(self, name: str) -> list[str]:
        """Running pods of a part, which don't end, oldest first."""
        pods = self.objects("pods", "--selector", f"app.kubernetes.io/name=pointsman-{name}")
        running = [
            each
            for each in pods
            if each["status"]["phase"] == "Running" and "deletionTimestamp" not in each["metadata"]
        ]
        return [
            each["metadata"]["name"] for each in sorted(running, key=lambda pod: pod["metadata"]["creationTimestamp"])
        ]

    def shell(self, *words: str, timeout_s: float = 120) -> str:
        """Run in the operator's pod."""
        return self.kubectl("exec", "deploy/pointsman-cli", "--", *words, timeout_s=timeout_s)
