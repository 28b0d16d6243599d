"""The engines of all pools as a page shows them, and what has changed since it last asked."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from pydantic import JsonValue

from pointsman_contracts.fleet import FleetView
from pointsman_contracts.pool import PoolSnapshot, WorkerView

FRESH_MS: Final = 1500.0
"""Reports younger than this have the age 0 on the page: a figure that changes with each report says nothing."""
ROUND: Final = 100


class Learnt(NamedTuple):
    """One scheduler's knowledge of a worker beyond its reports."""

    open: int
    prefix_blocks: int
    speed: float | None
    ignored: str


class Engine(NamedTuple):
    """One row."""

    pool: str
    worker: str
    state: str
    reason: str
    """Why it is unreachable, or why decisions leave it out."""
    running: int
    waiting: int
    kv: int
    """Used part of the KV cache, in percent."""
    age_s: int
    """Age of its last load report in whole seconds; 0 for a fresh one, -1 for none."""
    opaque: bool
    open: int | None
    """Requests on the books of the scheduler that was asked; None before it answers."""
    prefix_tokens: int | None
    """Prompt tokens that its KV cache is believed to hold."""
    speed: float | None
    """Learnt duration of its passes divided by the pool's."""
    url: str


COLUMNS: Final = Engine._fields

_UNKNOWN: Final = Learnt(-1, -1, None, "")


class FleetTable:
    """Rows with the version at which each last changed."""

    def __init__(self) -> None:
        self.version = 0
        self._snapshots: dict[str, PoolSnapshot] = {}
        self._learnt: dict[str, dict[str, Learnt]] = {}
        self._views: dict[str, FleetView] = {}
        self._rows: dict[tuple[str, str], tuple[int, Engine]] = {}
        self._gone: dict[tuple[str, str], int] = {}

    def take_snapshot(self, snapshot: PoolSnapshot) -> None:
        """A pool's state; figures follow at `advance`."""
        self._snapshots[snapshot.pool] = snapshot

    def take_view(self, view: FleetView) -> None:
        """A scheduler's knowledge of a pool's workers."""
        self._views[view.pool] = view
        speeds: Iterable[float | None] = view.speeds or (None,) * len(view.workers)
        self._learnt[view.pool] = {
            worker: Learnt(held, blocks, None if speed is None else round(speed, 2), view.ignored.get(worker, ""))
            for worker, held, blocks, speed in zip(view.workers, view.open, view.prefix_blocks, speeds, strict=True)
        }

    def list_pools(self) -> list[str]:
        """Names of the pools that were heard of."""
        return sorted(self._snapshots)

    def advance_version(self) -> None:
        """Bring the rows up to what was taken: one new version for all of it."""
        version = self.version + 1
        changed = False
        seen: set[tuple[str, str]] = set()
        for pool, snapshot in self._snapshots.items():
            learnt, view = self._learnt.get(pool, {}), self._views.get(pool)
            block_tokens = view.block_tokens if view is not None else 0
            for each in snapshot.workers:
                key = (pool, each.worker)
                seen.add(key)
                row = _engine(pool, each, learnt.get(each.worker, _UNKNOWN), block_tokens)
                known = self._rows.get(key)
                if known is None or known[1] != row:
                    self._rows[key] = version, row
                    changed = True
        for key in self._rows.keys() - seen:
            del self._rows[key]
            self._gone[key] = version
            changed = True
        if changed:
            self.version = version

    def changes_since(self, since: int) -> dict[str, JsonValue]:
        """Rows and names that changed after this version; 0 for everything."""
        rows: list[JsonValue] = [list(row) for version, row in self._rows.values() if version > since]
        gone: list[JsonValue] = [
            list(key) for key, version in self._gone.items() if version > since > 0 and key not in self._rows
        ]
        pools: list[JsonValue] = [self._pool(name) for name in self.list_pools()]
        return {"version": self.version, "rows": rows, "gone": gone, "pools": pools}

    def _pool(self, name: str) -> JsonValue:
        snapshot, view = self._snapshots[name], self._views.get(name)
        found: dict[str, JsonValue] = {
            "pool": name,
            "saturation": round(snapshot.saturation, 2),
            "models": list(snapshot.models),
            "unreached": dict(snapshot.unreached),
            "problem": snapshot.discovery.problem if snapshot.discovery is not None else "",
        }
        if view is not None:
            found |= {
                "scheduler": view.scheduler,
                "queued": view.queued,
                "unbound": view.unbound,
                "prefill_tokens_s": None if view.prefill_tokens_s is None else round(view.prefill_tokens_s),
                "step_ms": None if view.step_ms is None else round(view.step_ms, 1),
            }
        return found


def _state(seen: WorkerView, learnt: Learnt) -> str:
    if seen.state != "serving":
        return seen.state
    return seen.verdict or ("ignored" if learnt.ignored else seen.state)


def _drained(seen: WorkerView) -> str:
    """Why an engine drains, and until when."""
    notice = seen.draining
    if notice is None:
        return ""
    left = "" if notice.left_ms is None else f"; what it has moves in {notice.left_ms // 1000} s"
    return f"{notice.why or 'ordered'}{left}"


def _engine(pool: str, seen: WorkerView, learnt: Learnt, block_tokens: int) -> Engine:
    known = learnt is not _UNKNOWN
    return Engine(
        pool=pool,
        worker=seen.worker,
        state=_state(seen, learnt),
        reason=_drained(seen) or learnt.ignored or seen.verdict_reason or seen.reason,
        running=seen.running,
        waiting=seen.waiting,
        kv=round(ROUND * seen.kv_usage),
        age_s=-1 if seen.age_ms < 0 else 0 if seen.age_ms < FRESH_MS else round(seen.age_ms / 1000),
        opaque=seen.opaque,
        open=learnt.open if known else None,
        prefix_tokens=learnt.prefix_blocks * block_tokens if known else None,
        speed=learnt.speed,
        url=seen.url,
    )
