"""Takes answers that clients have, and has copies of their requests answered."""

from collections.abc import Awaitable, Mapping
from typing import Final

from pointsman_apis import named
from pointsman_contracts.journey import AFTER
from pointsman_contracts.response_stage import ResponseReview, Verdict
from pointsman_core.config import Mirror
from pointsman_hosting.configuration import Configuration
from pointsman_journey.content_client import ContentGone, ContentSource, ContentUnusable
from pointsman_mirror.copier import COPY_PREFIX, Copier, copy_id_of, name_of
from pointsman_mirror.domain.copying import NotCopied, make_copy
from pointsman_mirror.metrics import MirrorMetrics
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.missing import Missing

REMEMBERED: Final = 4096
"""Most requests of which it is known that they were mirrored."""

_log = Log("mirror")


class Handlers:
    """Every verdict is that the answer passes: the client has it."""

    def __init__(
        self,
        instance: str,
        configuration: Configuration[Mapping[str, Mirror]],
        content: ContentSource,
        copier: Copier,
        metrics: MirrorMetrics,
    ) -> None:
        self._instance: Final = instance
        self._configuration: Final = configuration
        self._content: Final = content
        self._copier: Final = copier
        self._metrics: Final = metrics
        self._mirrored: Final[dict[str, None]] = {}
        """Ids of first copies, oldest first."""
        self._missing: Final = Missing(_log)

    def review(self, review: ResponseReview) -> Verdict | Awaitable[Verdict]:
        """Have the request's copies answered, where it is to have some. The edge holds its body until this returns."""
        name = name_of(review)
        mirror = self._configuration.revisions[review.revision].compiled.get(name)
        if mirror is None:
            return self._verdict(review, "no such mirror")
        why_not = self._why_not(review, mirror) or self._copier.take_room(name, mirror)
        if why_not is not None:
            return self._skipped(review, why_not)
        return self._mirror(review, mirror)

    async def _mirror(self, review: ResponseReview, mirror: Mirror) -> Verdict:
        first, begun = copy_id_of(review, mirror.to[0]), 0
        self._mirrored[first] = None
        try:
            body = await self._content.fetch_body(review.edge, review.request_id)
            api = named(review.api)
            bodies = {model: make_copy(api, body, model) for model in mirror.to}
            self._copier.begin_copies(review, mirror, bodies)
            begun = len(bodies)
        except NotCopied as problem:
            return self._skipped(review, str(problem))
        except (ContentGone, ContentUnusable, BusError) as problem:
            self._missing.note_missing("the request", problem, request_id=review.request_id)
            return self._skipped(review, "request gone")
        finally:
            self._copier.give_back(name_of(review), len(mirror.to) - begun)
            if not begun:
                self._mirrored.pop(first, None)
            elif len(self._mirrored) > REMEMBERED:
                del self._mirrored[next(iter(self._mirrored))]
        self._missing.note_recovery("the request")
        return self._verdict(review, f"copied as {', '.join(copy_id_of(review, model) for model in bodies)}")

    def _why_not(self, review: ResponseReview, mirror: Mirror) -> str | None:
        if review.mode != AFTER:
            return "asked too early"
        if review.mirrored or review.request_id.startswith(COPY_PREFIX):
            return "a copy"
        if review.outcome != "ok" or review.served is None:
            return "not answered by a model"
        if copy_id_of(review, mirror.to[0]) in self._mirrored:
            return "copied before"
        return None

    def _skipped(self, review: ResponseReview, reason: str) -> Verdict:
        self._metrics.skipped.labels(name_of(review), reason).inc()
        return self._verdict(review, f"not copied: {reason}")

    def _verdict(self, review: ResponseReview, note: str) -> Verdict:
        return Verdict(request_id=review.request_id, instance=self._instance, note=note)
