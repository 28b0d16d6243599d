"""The demo's screen while it runs: the engines, and the latest decisions with their reasons."""

import time
from collections import deque
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from pointsman_cli.demo.summary import Measures
from pointsman_cli.explain import events
from pointsman_cli.tables import borderless, unbroken
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_core import why

_ROWS: Final = 12
_BAR: Final = 24
_LINE_EVERY_S: Final = 1.0
"""Where nothing can be redrawn, one decision a second is enough to read along."""


class Screen:
    """Redraws itself on a terminal; prints a line a second elsewhere."""

    def __init__(self, console: Console, measures: Measures, workers: list[str], clients: int, seconds: float) -> None:
        self._console = console
        self._measures = measures
        self._workers = workers
        self._clients = clients
        self._seconds = seconds
        self._began = time.monotonic()
        self._decisions: deque[RequestScheduled] = deque(maxlen=_ROWS)
        self._live = Live(self, console=console, refresh_per_second=6, transient=True) if console.is_terminal else None
        self._printed = 0.0

    def __enter__(self) -> "Screen":
        self._began = time.monotonic()
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show_decision(self, event: RequestScheduled) -> None:
        """A scheduler chose an endpoint."""
        self._decisions.append(event)
        now = time.monotonic()
        if self._live is None and now - self._printed >= _LINE_EVERY_S:
            self._printed = now
            self._console.print(events.as_line(event), soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The whole picture."""
        del console, options
        yield Group(self._head(), Text(), self._engines(), Text(), self._latest())

    def _head(self) -> Text:
        passed = min(time.monotonic() - self._began, self._seconds)
        failed = len(self._measures.failed_answers)
        return Text.assemble(
            (f"{self._clients} clients", "bold"),
            f" · {passed:.0f} of {self._seconds:.0f} s · {len(self._measures.answers)} answers · ",
            (f"{failed} failed", "bold red") if failed else ("none failed", "green"),
        )

    def _engines(self) -> Table:
        measures = self._measures
        most = max(measures.served.values(), default=0) or 1
        right = [Column(name, justify="right") for name in ("answers", "prompt tokens from its cache")]
        table = borderless(*unbroken("  engine"), right[0], Column("", width=_BAR), right[1])
        for worker in sorted({*self._workers, *measures.served}):
            served, prompt = measures.served[worker], measures.prompts[worker]
            share = f"{measures.cached[worker] / prompt:.0%}" if prompt else "-"
            table.add_row(f"  {worker}", str(served), Text("█" * round(_BAR * served / most), "cyan"), share)
        return table

    def _latest(self) -> Table:
        table = borderless(*unbroken("  decided"), "asked for · profile", *unbroken("endpoint"), "why")
        for event in self._decisions:
            clock = time.strftime("%H:%M:%S", time.localtime(event.at_ms / 1000))
            endpoint = event.endpoints[0] if event.endpoints else "-"
            table.add_row(
                f"  {clock}", _cut(events.asked(event)), Text(endpoint, "bold"), _cut(why.short(event), "green")
            )
        return table


def _cut(text: str, style: str = "") -> Text:
    """A cell that gives its width to the others of its row: time and endpoint are read whole."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")
