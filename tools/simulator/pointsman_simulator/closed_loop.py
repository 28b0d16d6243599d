"""ClosedLoop that depend on the ends of other requests: an agent's next step waits for the answer to the last one."""

import heapq
import math
from collections.abc import Sequence

from pointsman_simulator.trace import TraceRequest


class ClosedLoop:
    """When the requests of a trace arrive, as far as that is known. Times are in ms."""

    def __init__(self, trace: Sequence[TraceRequest]) -> None:
        self._trace = trace
        self._heap: list[tuple[float, int]] = []
        self._followers: dict[int, list[int]] = {}
        self._awaited: dict[int, int] = {}
        """How many ends a request still waits for."""
        self._last_end: dict[int, float] = {}
        for place, request in enumerate(trace):
            if not request.after:
                self._heap.append((request.arrival_ms, place))
                continue
            self._awaited[place] = len(request.after)
            for before in request.after:
                self._followers.setdefault(before, []).append(place)
        heapq.heapify(self._heap)

    @property
    def has_unknown(self) -> bool:
        """Whether some requests wait for the ends of others."""
        return bool(self._awaited)

    @property
    def next_at(self) -> float:
        """The first arrival that is known; infinite when there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def pop(self) -> tuple[float, int]:
        """The first arrival and the request's place in the trace."""
        return heapq.heappop(self._heap)

    def arrive_again(self, place: int, at: float) -> None:
        """The request is sent again."""
        heapq.heappush(self._heap, (at, place))

    def end_request(self, place: int, at: float) -> None:
        """The request's answer is complete."""
        for follower in self._followers.pop(place, ()):
            last = self._last_end[follower] = max(at, self._last_end.get(follower, at))
            self._awaited[follower] -= 1
            if not self._awaited[follower]:
                del self._awaited[follower], self._last_end[follower]
                heapq.heappush(self._heap, (last + self._trace[follower].gap_ms, follower))
