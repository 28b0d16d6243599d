"""Missing dependencies of a process: logged once, until they are back."""

from typing import Final

from pointsman_runtime.telling.logs import Field, Log


class Missing:
    """The dependencies of one part of a process, by name."""

    def __init__(self, log: Log) -> None:
        self._log: Final = log
        self._told: Final[dict[str, str]] = {}

    @property
    def is_complete(self) -> bool:
        """Everything is there, as far as anybody knows."""
        return not self._told

    def note_missing(self, what: str, problem: Exception | str, **facts: Field) -> str:
        """Log it once, and again when the problem changes; returns a note for the trail."""
        text = str(problem) or type(problem).__name__
        if self._told.get(what) != text:
            self._told[what] = text
            hint = "logged again only after it has worked in between"
            self._log.warning("degraded", missing=what, problem=text, hint=hint, **facts)
        return f"{what} unavailable"

    def note_recovery(self, *what: str) -> None:
        """These work."""
        if self._told:
            for each in what:
                if self._told.pop(each, None) is not None:
                    self._log.info("available_again", what=each)
