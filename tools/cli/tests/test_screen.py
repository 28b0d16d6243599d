"""The demo's screen on a narrow terminal."""

from io import StringIO

from rich.console import Console

from pointsman_cli.demo.screen import Screen
from pointsman_cli.demo.summary import Measures
from pointsman_testing.builders import scheduled


def test_a_narrow_terminal_shows_every_time_and_endpoint_whole_and_cuts_the_reason() -> None:
    console = Console(width=80, file=StringIO(), record=True)
    screen = Screen(console, Measures(), ["engine-1", "engine-2"], clients=8, seconds=20.0)
    for _ in range(3):
        screen.show_decision(
            scheduled(
                model="a-model-with-a-long-name",
                profile="latency-sensitive",
                reason="least-delay: 1.00, engine-1 0.00; " * 2,
                endpoints=("engine-2", "engine-1"),
            )
        )
    console.print(screen)
    head, *rows = [line for line in console.export_text().splitlines() if ":" in line or "decided" in line][-4:]
    assert head.split() == ["decided", "asked", "for", "·", "profile", "endpoint", "why"]
    for row in rows:
        assert len(row.split()[0]) == len("14:07:34")
        assert "engine-2" in row.split()
        assert len(row) <= 80
