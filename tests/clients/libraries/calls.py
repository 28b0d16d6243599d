"""Runs every call of a library against a gateway. It imports nothing but the library: it runs in an environment without
the gateway's packages.

    python -m libraries.calls LIBRARY URL

prints a line of JSON for each call: its name, and why it failed.
"""

import importlib
import json
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import NamedTuple

MODEL = "llama-3.1-8b"
LORA = "sql-lora"
HELLO = "Say something."
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJ"
    "RU5ErkJggg=="
)
PARAMETERS: dict[str, object] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
WEATHER: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "sky": {"type": "string", "enum": ["clear", "cloudy"]}},
    "required": ["city", "sky"],
    "additionalProperties": False,
}


class Call(NamedTuple):
    """One call of a library."""

    title: str
    """The call as a reader would look for it."""
    path: str
    served: bool
    """Whether the simulated engine serves it; if not, the call holds the words of the refusal."""
    run: Callable[[str], None]
    """Takes the gateway's URL."""


class Calls(list[Call]):
    """The calls of one library, in their order."""

    def add(self, title: str, path: str, *, served: bool = True) -> Callable[[Callable[[str], None]], None]:
        """Decorates a function that makes a call and asserts what it returns."""

        def keep(run: Callable[[str], None]) -> None:
            self.append(Call(title, path, served, run))

        return keep


def refusal(kind: type[Exception], call: Callable[[], object], *words: str) -> None:
    """The call raises this error, and its message has these words."""
    message = ""
    try:
        call()
    except kind as error:
        message = str(error)
    missing = [word for word in words if word not in message]
    assert not missing, f"{missing} aren't in: {message or 'no error'}"


def collected(pieces: Iterable[str | None]) -> str:
    """The text of a stream that came in more than one piece."""
    texts = [piece for piece in pieces if piece]
    assert len(texts) > 1, texts
    return "".join(texts)


def main(library: str, door: str) -> None:
    """Run the calls of `libraries.LIBRARY` and print what became of them."""
    calls: Calls = importlib.import_module(f"libraries.{library}").CALLS
    for call in calls:
        problem = ""
        try:
            call.run(door)
        except Exception:  # noqa: BLE001 - the test shows it
            problem = traceback.format_exc()
        sys.stdout.write(json.dumps({"call": call.title, "problem": problem}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
