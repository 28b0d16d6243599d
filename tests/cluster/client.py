"""A client in a namespace of its own, which sends requests to the frontend from within the cluster."""

import contextlib
import json
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Final

from tests.cluster.kube import CommandFailed, Installation, run, within

LOAD: Final = Path(__file__).with_name("load.py")
RATE: Final = 8.0
"""Requests a second, unless another rate is wanted."""


class Sent:
    """The results of a load's requests, once it ended: as load.py prints them."""

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.late_s = 0.0
        self.pressure: float | None = None

    @property
    def requests(self) -> int:
        """All of them."""
        return sum(self.outcomes.values())

    @property
    def failed(self) -> int:
        """Those that got no whole answer."""
        return self.requests - self.outcomes.get("ok", 0)

    @property
    def cut(self) -> int:
        """Those of which the answer ended early."""
        return sum(count for outcome, count in self.outcomes.items() if outcome.startswith("cut"))

    def __str__(self) -> str:
        reasons = "; ".join(f"{count} {what}" for what, count in self.outcomes.items() if what != "ok")
        failed = f"{self.failed} of {self.requests} failed" + (f" ({reasons})" if reasons else "")
        waited = "unknown" if self.pressure is None else f"{self.pressure:.0%}"
        return f"{failed}; CPU pressure {waited}, sent at most {self.late_s * 1000:.0f} ms late"


class Client:
    """The pod. It sends to the frontend, or to another `address`."""

    def __init__(self, installation: Installation, address: str | None = None, rate: float = RATE) -> None:
        self._rate = rate
        self.namespace = f"{installation.namespace}-clients"
        self._address = address
        self._installation = installation
        self._image = installation.image("cli")

    def at(self, address: str) -> "Client":
        """The same pod, sending to another address."""
        return Client(self._installation, address, self._rate)

    @property
    def address(self) -> str:
        """Host and port; of the frontend's Service without its name, so that no failure is of the cluster's DNS."""
        if self._address is not None:
            return self._address
        service = self._installation.kubectl("get", "service/pointsman-frontend", "-o", "jsonpath={.spec.clusterIP}")
        return f"[{service}]:8080" if ":" in service else f"{service}:8080"

    def node(self) -> str:
        """The name of its node."""
        return run(["kubectl", "-n", self.namespace, "get", "pod/client", "-o", "jsonpath={.spec.nodeName}"])

    def start(self) -> None:
        """Make the namespace and the pod."""
        metadata = {"name": "client", "namespace": self.namespace}
        container = {"name": "client", "image": self._image, "command": ["sleep", "infinity"]}
        # Its share of the CPU: one that starves sends late, and finds its connections closed.
        container |= {"resources": {"requests": {"cpu": "300m", "memory": "64Mi"}}}
        namespace = {"name": self.namespace, "labels": {"pointsman-clients": "true"}}
        objects = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": namespace},
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata,
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
            },
        ]
        for each in objects:
            within(
                60,
                f"the client's {each['kind']}",
                lambda each=each: run(["kubectl", "apply", "-f", "-"], json.dumps(each)),
            )
        run(["kubectl", "-n", self.namespace, "wait", "pod/client", "--for=condition=Ready", "--timeout=120s"])

    def python(self, program: str, *words: str) -> str:
        """Run a program in the pod."""
        return run(["kubectl", "-n", self.namespace, "exec", "client", "--", "python", "-c", program, *words])

    def ask(self, model: str, *, stream: bool = False, request_id: str = "") -> str:
        """How one request for a model ends, as in load.py."""
        call = f"ask(sys.argv[1], 0, stream={stream}, model=sys.argv[2], request_id=sys.argv[3])"
        program = f"{LOAD.read_text().partition(chr(10) + 'if __name__')[0]}\nprint(asyncio.run({call}))"
        return self.python(program, self.address, model, request_id).strip()

    @contextlib.contextmanager
    def load(self, *, stream: bool = False) -> Generator[Sent]:
        """Send requests for the length of a `with`, at the rate; the outcomes are there afterwards."""
        sent = Sent()
        words = [self.address, str(self._rate), *(["stream"] if stream else [])]
        command = [
            "kubectl",
            "-n",
            self.namespace,
            "exec",
            "-i",
            "client",
            "--",
            "python",
            "-c",
            LOAD.read_text(),
            *words,
        ]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            yield sent
        finally:
            output, _ = process.communicate(timeout=120)
        if process.returncode:
            raise CommandFailed(f"the client ended with {process.returncode}")
        summary = json.loads(output)
        sent.outcomes, sent.late_s, sent.pressure = summary["outcomes"], summary["late_s"], summary["pressure"]
