"""The pages: one frame with another title, module and place in the navigation; and the files that they are made of."""

from html import escape
from pathlib import Path
from typing import Final, NamedTuple

STATIC: Final = Path(__file__).parent.parent / "static"


class Page(NamedTuple):
    """One page of the navigation."""

    path: str
    name: str
    """Name of its module and style."""
    title: str


PAGES: Final = (
    Page("/", "fleet", "Fleet"),
    Page("/decisions", "decisions", "Decisions"),
    Page("/sessions", "sessions", "Sessions"),
    Page("/levels", "levels", "Service levels"),
    Page("/usage", "usage", "Usage and limits"),
    Page("/batches", "batches", "Batches"),
    Page("/configuration", "configuration", "Configuration"),
    Page("/results", "results", "Replays and policies"),
)
DECISION: Final = Page("/decision", "decision", "One decision")
LOGIN: Final = Page("/login", "login", "Log in")
MISSING: Final = Page("", "missing", "Page not found")
"""For every other address."""


def rendered() -> dict[str, str]:
    """Path → document, of every page; `MISSING` too."""
    frame = (STATIC / "page.html").read_text(encoding="utf-8")
    return {page.path: _filled(frame, page) for page in (*PAGES, DECISION, LOGIN, MISSING)}


def _filled(frame: str, page: Page) -> str:
    shown = "" if page is LOGIN else _navigation(page)
    text = frame.replace("{title}", escape(page.title)).replace("{name}", page.name)
    return text.replace("{navigation}", shown)


def _navigation(current: Page) -> str:
    # One decision belongs to the decisions.
    here = "decisions" if current is DECISION else current.name
    links = (
        f'<li><a href="{page.path}"{" aria-current=page" if page.name == here else ""}>{escape(page.title)}</a></li>'
        for page in PAGES
    )
    return f'<nav aria-label="Pages"><ul>{"".join(links)}</ul></nav>'
