"""Progress on the terminal while a stack starts, and when one of its processes fails later."""

import time

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pointsman_cli.stack.keeper import Keeper
from pointsman_cli.stack.plan import Kind
from pointsman_cli.stack.stack import LocalStack
from pointsman_cli.stack.supervision import State

_MARKS = {
    State.PLANNED: ("·", "dim"),
    State.STARTING: ("○", "yellow"),
    State.READY: ("●", "green"),
    State.NOT_READY: ("○", "yellow"),
    State.CRASHED: ("✗", "red"),
    State.GIVEN_UP: ("✗", "bold red"),
    State.STOPPED: ("·", "dim"),
}


class Progress:
    """Reports on processes: on a terminal a table that updates itself, elsewhere a line for each change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stack: LocalStack | None = None
        self._began = time.monotonic()
        self._live: Live | None = None
        self._quiet = False

    def show_stack(self, stack: LocalStack) -> None:
        """Show the bring-up of this stack."""
        self._stack = stack
        self._began = time.monotonic()
        if self._console.is_terminal:
            self._live = Live(self, console=self._console, refresh_per_second=8, transient=True)
            self._live.start()

    def end_progress(self) -> float:
        """The bring-up is over. Returns how long it took, in seconds."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        return time.monotonic() - self._began

    def close(self) -> None:
        """Stop reporting: processes that end from now on do so on request."""
        self._quiet = True

    def report_change(self, keeper: Keeper) -> None:
        """A process became ready, stopped being ready, or ended."""
        if self._quiet:
            return
        life = keeper.life
        if self._live is not None and life.state is State.READY:
            return  # the table shows it
        if keeper.plan.kind is Kind.VIEWER and life.state is State.READY and life.starts == 1:
            return  # its address was printed, and nothing waits for it
        clock = time.strftime("%H:%M:%S")
        mark, style = _MARKS[life.state]
        text = Text.assemble((f"{clock} ", "dim"), (f"{mark} ", style), (life.name, "bold"), f" {_sentence(keeper)}")
        self._console.print(text, soft_wrap=True)
        # The log of a process that was killed doesn't say why.
        if life.state in (State.CRASHED, State.GIVEN_UP) and not life.why.startswith("killed"):
            for line in keeper.read_complaints()[-2:]:
                self._console.print(Text(f"             {line}", "dim"), soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table."""
        del console, options
        if self._stack is None:
            return
        passed = time.monotonic() - self._began
        yield Text.assemble(("Starting Pointsman", "bold"), (f"  {self._stack.step} · {passed:.0f} s", "dim"))
        table = Table.grid(padding=(0, 2))
        for keeper in self._stack.keepers:
            mark, style = _MARKS[keeper.life.state]
            table.add_row(Text(f"  {mark}", style), keeper.life.name, Text(str(keeper.life.state), style), _why(keeper))
        yield table


def _sentence(keeper: Keeper) -> str:
    life = keeper.life
    match life.state:
        case State.READY:
            return "is ready" if life.starts == 1 else "is ready again"
        case State.CRASHED:
            return f"{life.why}; starting it again"
        case State.GIVEN_UP:
            return f"{life.why}; not starting it again"
        case _:
            return f"is {life.state}{f': {life.why}' if life.why else ''}"


def _why(keeper: Keeper) -> Text:
    life = keeper.life
    if life.state is State.READY:
        return Text("")
    return Text(life.why, "dim", no_wrap=True, overflow="ellipsis")
