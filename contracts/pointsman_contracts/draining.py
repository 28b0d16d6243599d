"""Orders to drain engines, and to end that."""

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from pointsman_contracts.message import Address, Message, Part, always

LONGEST_DRAIN_MS: Final = 24 * 3600 * 1000
Left = Annotated[int, Meta(ge=0, le=LONGEST_DRAIN_MS)]


class DrainQuery(Message, frozen=True, kw_only=True):
    """Orders engines to drain, or to take requests again. Sent by operators: the command `pointsman engines drain`, and
    the console's webhook. Every metrics-collector answers with `DrainAnswer`, and keeps the order for as long as the
    engine's life lasts. It may come twice: of two orders about an engine the last one counts."""

    address: ClassVar[Address] = Address("ctl", "worker", "drain")

    engine: str = always("")
    """URL or worker name of one engine."""
    host: str = always("")
    """Instead: every engine whose URL has this host, or whose label `kubernetes.io/hostname` or `host` says so."""
    pool: str = always("")
    """Only in this pool; empty for any."""
    within_ms: Left = always(30_000)
    """Until what the engine has moves elsewhere."""
    undo: bool = always(False)
    """Take requests again."""
    force: bool = always(False)
    """Drain the last engine that serves a model, too: requests for it get 503 then."""
    why: str = always("")
    """Who or what orders it, in words."""


class OrderedDrain(Part, frozen=True, kw_only=True):
    """An engine that was ordered to drain, or to take requests again."""

    pool: str
    worker: str
    url: str
    before: str = always("")
    """Why it drained already, when the order came; empty: it didn't."""
    warning: str = always("")
    """The models that nothing else serves, in words; empty: others serve each of them."""


class DrainAnswer(Message, frozen=True, kw_only=True):
    """The answer to `DrainQuery`."""

    address: ClassVar[Address] = Address("ctl", "worker", "drain-answer", route=("inbox",))

    instance: str
    engines: tuple[OrderedDrain, ...] = always(())
    refusal: str = always("")
    """Why nothing was ordered, in words; empty: it was."""
    known: tuple[str, ...] = always(())
    """With a refusal of an unknown engine: the URLs of some that are known."""


class DrainOrder(Message, frozen=True, kw_only=True):
    """Orders an agent to report its engine as draining, or as serving again. Published by the metrics-collector that
    answers for the worker, again and again until the agent reports it: agents restart, and messages are lost."""

    address: ClassVar[Address] = Address("ctl", "worker", "drain-order", route=("pool", "worker"))

    boot_id: str
    """The engine's life; an agent ignores an order for another one."""
    left_ms: Left | None = None
    """Time until the drain ends (`DrainNotice.left_ms`); None with `undo`."""
    why: str = always("")
    undo: bool = always(False)
