"""The time before an engine can compute a prompt: it fetches blocks from a tier below its device, or loads an adapter.

Both are learnt from requests that had to wait for one of them alone, at an engine that had no other prompt: their time
to the first token, less the pass. A tier has a time per token, an adapter one time; each by least squares of one
coefficient with forgetting, a bounded variance and Huber weights, as `PassModel` has them.
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Final, NamedTuple

_FETCH_MS: Final = {"host": 0.0026, "disk": 0.026, "store": 0.087}
"""Priors, for each token of 131,072 bytes (Llama 3.1 8B: 32 layers, 8 KV heads of 128 values of 2 bytes): 50 GB/s from
host memory (vLLM, "Inside vLLM's New KV Offloading Connector", 2026-01-08: one direction, H100), 5 GB/s from an NVMe
disk and 1.5 GB/s from a store in the network (vLLM 0.32, `v1/kv_offload/tiering/backpressure.py`)."""
_LOAD_MS: Final = 30.0
"""Before the first observation. SGLang #13349 and vLLM #31317 have tens of milliseconds to some seconds."""
_WIDEST: Final = 64.0
"""A learnt time stays within this factor of its prior."""
_FORGET: Final = 0.998
_HUBER: Final = 3.0
_MOST_ADAPTERS: Final = 4096
_MOST_LIVES: Final = 4096
_SLOTS: Final = 8
"""Adapters that an engine keeps that doesn't report how many."""


class LearntTime:
    """One coefficient: milliseconds for each unit."""

    def __init__(self, prior: float) -> None:
        self.value = prior
        self.observations = 0
        self._prior: Final = prior
        self._variance = (2.0 * prior) ** 2

    def learn_time(self, units: float, took_ms: float, deviation_ms: float) -> None:
        """`units` took this long, with noise of this standard deviation."""
        self.observations += 1
        residual = took_ms - self.value * units
        spread = math.sqrt(deviation_ms**2 + self._variance * units**2)
        weight = min(1.0, _HUBER * spread / abs(residual)) if residual else 1.0
        gain = self._variance * units / (deviation_ms**2 / weight * _FORGET + self._variance * units**2)
        self.value = min(self._prior * _WIDEST, max(self._prior / _WIDEST, self.value + gain * residual))
        self._variance = min((2.0 * self._prior) ** 2, self._variance * (1.0 - gain * units) / _FORGET)
        # Never surer than a tenth: a link gets slower while many fetch.
        self._variance = max(self._variance, (0.1 * self.value) ** 2)


class FetchTimes:
    """How long an engine of the pool takes to fetch a token, by tier."""

    def __init__(self) -> None:
        self.tiers: dict[str, LearntTime] = {}

    def per_token(self, tier: str) -> float:
        """Milliseconds for a token of this tier."""
        learnt = self.tiers.get(tier)
        return _fetch_prior(tier) if learnt is None else learnt.value

    def predict_fetch(self, fetched: Mapping[str, float]) -> float:
        """Milliseconds for so many tokens of each tier, one tier after the other."""
        return sum([tokens * self.per_token(tier) for tier, tokens in fetched.items()])

    def learn_fetch(self, tier: str, tokens: float, took_ms: float, deviation_ms: float) -> None:
        learnt = self.tiers.get(tier)
        if learnt is None:
            learnt = self.tiers[tier] = LearntTime(_fetch_prior(tier))
        learnt.learn_time(tokens, took_ms, deviation_ms)


class AdapterLoads:
    """How long an adapter takes to load, and which engines have it loaded. vLLM reports only adapters with requests
    (llm-d-router #2605), so those that an engine used last are taken to be there still."""

    def __init__(self) -> None:
        self._mean = LearntTime(_LOAD_MS)
        self._times: OrderedDict[str, LearntTime] = OrderedDict()
        self._loaded: OrderedDict[int, OrderedDict[str, None]] = OrderedDict()
        """Life of an engine → its adapters, the last used at the end."""

    def predict_load(self, adapter: str) -> float:
        """Milliseconds to load it; 0 until a load was observed."""
        learnt = self._times.get(adapter)
        if learnt is not None:
            return learnt.value
        return self._mean.value if self._mean.observations else 0.0

    def is_loaded(self, life: int, adapter: str) -> bool:
        """Whether the engine has used it lately."""
        return adapter in self._loaded.get(life, ())

    def note_use(self, life: int, adapter: str, slots: int) -> None:
        """The engine answers a request for it. `slots`: how many adapters it keeps; 0 when unknown."""
        loaded = self._loaded.setdefault(life, OrderedDict())
        loaded[adapter] = None
        loaded.move_to_end(adapter)
        while len(loaded) > (slots or _SLOTS):
            loaded.popitem(last=False)
        if len(self._loaded) > _MOST_LIVES:
            self._loaded.popitem(last=False)

    def learn_load(self, adapter: str, took_ms: float, deviation_ms: float) -> None:
        """An engine loaded it."""
        self._mean.learn_time(1.0, took_ms, deviation_ms)
        learnt = self._times.get(adapter)
        if learnt is None:
            learnt = self._times[adapter] = LearntTime(_LOAD_MS)
            learnt.value = self._mean.value
            if len(self._times) > _MOST_ADAPTERS:
                self._times.popitem(last=False)
        learnt.learn_time(1.0, took_ms, deviation_ms)


class Delayed(NamedTuple):
    """A request whose engine can't compute its prompt yet."""

    due: float
    number: int
    life: int
    key: Hashable
    prompt: int
    hit: int
    told: bool


class DelayedRequests:
    """The requests that are in a prelude, by when it is predicted to end."""

    def __init__(self) -> None:
        self.waiting: list[Delayed] = []
        """A heap, with some that left early."""
        self._keys: dict[Hashable, Delayed] = {}
        self._number = 0

    def put_request(self, life: int, key: Hashable, due: float, prompt: int, hit: int, *, told: bool) -> None:
        """The prelude of this request ends at `due`; the other arguments as of `DelayEstimator.sent`."""
        self._number += 1
        request = Delayed(due=due, number=self._number, life=life, key=key, prompt=prompt, hit=hit, told=told)
        self._keys[key] = request
        heapq.heappush(self.waiting, request)

    def take_due(self, now: float) -> list[Delayed]:
        """The requests with a prelude that is over, in order."""
        due: list[Delayed] = []
        while self.waiting and self.waiting[0].due <= now:
            request = heapq.heappop(self.waiting)
            if self._keys.get(request.key) is request:
                del self._keys[request.key]
                due.append(request)
        return due

    def take_request(self, key: Hashable) -> Delayed | None:
        """Take one out before its time; None when it isn't here."""
        found = self._keys.pop(key, None)
        if not self._keys:
            self.waiting.clear()
        return found


def _fetch_prior(tier: str) -> float:
    return _FETCH_MS.get(tier.partition(":")[0], _FETCH_MS["store"])
