"""What a cache leans on and isn't there: told once, until it is back."""

from typing import Final

from pointsman_runtime.logs import Log

_log = Log("cache")


class Missing:
    """Of one process."""

    def __init__(self) -> None:
        self._told: Final[dict[str, str]] = {}

    def note(self, what: str, problem: Exception) -> str:
        """Say it once; returns words for the trail."""
        text = str(problem) or type(problem).__name__
        if self._told.get(what) != text:
            self._told[what] = text
            _log.warning("degraded", missing=what, problem=text, hint="told again when it has worked in between")
        return f"{what} unavailable"

    def back(self, *what: str) -> None:
        """These work."""
        if self._told:
            for each in what:
                if self._told.pop(each, None) is not None:
                    _log.info("available_again", what=each)
