"""Flight logs on the command line: their errors, their gaps, and how far a command has read."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pointsman_cli.flight.simulate import progress
from pointsman_cli.words import CommandError, counted
from pointsman_flight.reader import Flight, LogDamagedError, LogError, LoggedRecord, NoLogError
from pointsman_scheduler.flight.thawing import SnapshotError

_EVERY: Final = 512
"""Records between two updates of the progress."""

_PLACES: Final = (
    "A scheduler writes its log into POINTSMAN_FLIGHT_DIR once its pool has `flight`; with `pointsman up` that is "
    "run/up/state/flight."
)


@contextmanager
def log_errors() -> Generator[None]:
    """Turns the errors of a log into CommandError."""
    try:
        yield
    except LogDamagedError as error:
        raise CommandError(f"the log was changed: {error}.", "Nothing after this byte can be trusted.") from error
    except NoLogError as error:
        raise CommandError(f"{error}.", _PLACES) from error
    except (LogError, SnapshotError) as error:
        raise CommandError(f"{error}.", "docs/replay.md says what can be replayed by which version.") from error


def gaps(flight: Flight) -> list[str]:
    """The inputs and bytes that a flight lacks, in words. Tails are known once the flight was read."""
    notes: list[str] = []
    for segment in flight.segments:
        header, name = segment.header, segment.path.name
        if header.gap:
            notes.append(f"{name}: {counted(header.missed, 'input')} before it missing: {header.gap}")
        if segment.torn is not None:
            notes.append(f"{name}: {counted(segment.torn.size, 'byte')} cut at its end, written when its process ended")
        elif segment.ended is None:
            notes.append(f"{name}: not ended; its scheduler was killed or still writes")
    return notes


@contextmanager
def progress_through(flights: Sequence[Flight], doing: str) -> Generator[Callable[[LoggedRecord], None]]:
    """A bar over the bytes of these flights, for as long as the context lasts; to be called with every record."""
    before: dict[Path, tuple[int, int]] = {}
    total = count = 0
    for number, flight in enumerate(flights):
        start = 0
        for segment in flight.segments:
            before[segment.path] = number, start
            start += segment.path.stat().st_size
        total += start
    read = [0] * len(flights)
    with progress() as bar:
        task = bar.add_task(doing, total=total)

        def update(logged: LoggedRecord) -> None:
            nonlocal count
            count += 1
            if count % _EVERY == 0:
                number, start = before[logged.segment.path]
                read[number] = start + logged.offset
                bar.update(task, completed=sum(read))

        yield update
