"""One inference engine as a state machine: continuous batching over a paged KV cache.

Time (milliseconds, any origin) is an argument and nothing here reads a clock, so the same engine runs in real
time behind HTTP and in virtual time for replay. The rules are those of the mock engine of NVIDIA Dynamo; see
the README for where they are written down and checked.
"""

import math
from collections import Counter, deque
from dataclasses import dataclass, field

from pointsman_simulator.host_cache import TOKEN_MS, HostCache, HostLink
from pointsman_simulator.kv_cache import KvCache
from pointsman_simulator.sequence import Sequence
from pointsman_simulator.timing import Timing, attention_pairs, effective_prefill_tokens


@dataclass(frozen=True, slots=True)
class EngineConfig:
    num_blocks: int = 16384
    block_size: int = 64
    """Tokens per KV block."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    """Tokens one pass may compute, over decodes (one each) and prefill chunks."""
    max_loras: int = 4
    """Different adapters that can run in one pass; a request for another one waits."""
    lora_load_ms: float = 0.0
    """Added to the pass that brings an adapter in which is not among the last `max_loras` used."""
    host_blocks: int = 0
    """Evicted blocks that host memory keeps; 0 for none."""
    fetch_token_ms: float = TOKEN_MS
    """For a token from there to the device; the request waits, and the engine goes on with others."""
    timing: Timing = field(default_factory=Timing)


@dataclass(slots=True)
class PassResult:
    """The result of one pass, or of a run of passes."""

    ended_at: float
    emitted: list[Sequence]
    """One entry per output token, in the order of the batch."""
    finished: list[Sequence]
    stored: list[int]
    removed: list[int]
    host_stored: list[int] = field(default_factory=list[int])
    host_removed: list[int] = field(default_factory=list[int])


@dataclass(slots=True)
class EngineCounters:
    passes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    fetched_tokens: int = 0
    """Those of `cached_tokens` that came from host memory."""
    generated_tokens: int = 0
    preemptions: int = 0
    aborted: int = 0
    finished: int = 0


class EngineModel:
    """`submit` and `abort` at any time; then `begin_pass` while idle, `finish_pass` at the time it returned."""

    def __init__(self, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig()
        self.host = HostCache(self.config.host_blocks) if self.config.host_blocks else None
        self.link = HostLink()
        self.cache = KvCache(self.config.num_blocks, None if self.host is None else self.host.keep_block)
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.counters = EngineCounters()
        self.pass_ends_at: float | None = None
        """When the pass in flight ends; None while idle."""
        self.gaps: Counter[int] | None = None
        """How often tokens of one answer were so far apart, in tenths of a millisecond; counted if set."""
        self._capacity = self.config.num_blocks * self.config.block_size
        self._plan: list[tuple[Sequence, int]] = []
        self._resident_loras: dict[str, None] = {}
        self._next_unnamed = 1 << 64

    @property
    def kv_usage(self) -> float:
        """Share of the blocks some sequence holds, 0 to 1."""
        return self.cache.used_blocks / self.config.num_blocks

    def submit_sequence(self, sequence: Sequence, now: float) -> None:
        if sequence.prompt_tokens < 1 or sequence.output_tokens < 1:
            raise ValueError("a sequence has at least one prompt token and one output token")
        if sequence.prompt_tokens + sequence.output_tokens > self._capacity:
            raise ValueError(
                f"{sequence.prompt_tokens + sequence.output_tokens} tokens never fit in a cache of {self._capacity}"
            )
        sequence.arrived_at = now
        self.waiting.append(sequence)

    def drop_sequence(self, sequence: Sequence) -> bool:
        """Drop a sequence and free its blocks at once. False when it is not here (any more)."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
            self._release(sequence)
        elif self.link.drop_sequence(sequence):
            self._release(sequence)
        else:
            return False
        sequence.aborted = True
        self.counters.aborted += 1
        return True

    def change_config(self, config: EngineConfig) -> None:
        """Work by another configuration from the next pass on. The cache keeps its size."""
        if (config.num_blocks, config.block_size) != (self.config.num_blocks, self.config.block_size):
            raise ValueError("the cache of an engine can't change its size")
        self.config = config

    def begin_pass(self, now: float) -> float | None:
        """Plan the next pass at `now` and return when it ends, or None when there is nothing to do."""
        if self.pass_ends_at is not None:
            raise RuntimeError("a pass is in flight")
        plan = self._plan
        plan.clear()
        self.waiting.extendleft(reversed(self.link.take_fetched(now)))
        budget = self._plan_running(self.config.max_num_batched_tokens)
        lora_loads = self._plan_waiting(budget, now)
        if not plan:
            return None
        chunks: list[tuple[int, int]] = []
        decoding_tokens = 0
        for sequence, tokens in plan:
            if sequence.decoding:
                decoding_tokens += sequence.computed
            else:
                chunks.append((sequence.computed, tokens))
        timing = self.config.timing
        duration = lora_loads * self.config.lora_load_ms / timing.speedup
        if chunks:
            duration += timing.prefill_ms(effective_prefill_tokens(chunks), attention_pairs(chunks))
        if len(chunks) < len(plan):
            duration += timing.decode_ms(decoding_tokens / self._capacity, len(plan) - len(chunks))
        self.pass_ends_at = now + duration
        return self.pass_ends_at

    def finish_pass(self) -> PassResult:
        """Apply the pass in flight: one output token for every sequence whose prompt is now computed."""
        if self.pass_ends_at is None:
            raise RuntimeError("no pass is in flight")
        ended_at, self.pass_ends_at = self.pass_ends_at, None
        emitted: list[Sequence] = []
        finished: list[Sequence] = []
        for sequence, tokens in self._plan:
            if sequence.aborted:
                continue
            sequence.computed += tokens
            if sequence.computed < sequence.prompt_tokens + sequence.generated:
                continue
            sequence.generated += 1
            emitted.append(sequence)
            if sequence.generated == 1:
                sequence.first_token_at = ended_at
            elif self.gaps is not None:
                self.gaps[round((ended_at - sequence.last_token_at) * 10.0)] += 1
            sequence.last_token_at = ended_at
            if sequence.generated == sequence.output_tokens:
                sequence.finished_at = ended_at
                finished.append(sequence)
        for sequence in finished:
            self.running.remove(sequence)
            self._release(sequence)
        self._plan.clear()
        self.counters.passes += 1
        self.counters.generated_tokens += len(emitted)
        self.counters.finished += len(finished)
        stored, removed = self.cache.take_changes()
        host_stored, host_removed = self.take_host_changes()
        return PassResult(
            ended_at=ended_at,
            emitted=emitted,
            finished=finished,
            stored=stored,
            removed=removed,
            host_stored=host_stored,
            host_removed=host_removed,
        )

    def take_host_changes(self) -> tuple[list[int], list[int]]:
        """Net changes of host memory since the last call."""
        return ([], []) if self.host is None else self.host.take_changes()

    def skip_decodes(self, now: float, until: float) -> float:
        """Run every pass that only decodes, finishes no request and ends by `until`; return when the last ended.

        The outcome is that of single passes, without their cost. Only the tokens are observable in between, so this is
        for virtual time. With requests waiting or memory short it does nothing.
        """
        running = self.running
        if self.waiting or not running:
            return now
        until = min(until, self.link.next_at)
        passes = min(sequence.output_tokens - sequence.generated for sequence in running) - 1
        if passes < 1 or not all(sequence.decoding for sequence in running):
            return now
        block_size = self.config.block_size
        if sum(-(-passes // block_size) + 1 for _ in running) > self.cache.available_blocks:
            return now
        batch = len(running)
        tokens = sum(sequence.computed for sequence in running)
        capacity = self._capacity
        timing = self.config.timing
        decode_ms = timing.decode_ms
        done = 0
        while done < passes:
            ended = now + decode_ms(tokens / capacity, batch)
            if ended > until:
                break
            if self.gaps is not None:
                self.gaps[round((ended - now) * 10.0)] += batch
            now = ended
            tokens += batch
            done += 1
        if done:
            for sequence in running:
                self._extend(sequence, done)
                sequence.computed += done
                sequence.generated += done
                sequence.last_token_at = now
            self.counters.passes += done
            self.counters.generated_tokens += done * batch
        return now

    def next_event_at(self) -> float:
        """No first or last token comes before this time, unless something is submitted; infinite when idle."""
        if self.pass_ends_at is None:
            return self.link.next_at
        if (
            self.waiting
            or len(self.link)
            or not all(sequence.generated and sequence.decoding for sequence, _ in self._plan)
        ):
            return self.pass_ends_at
        passes = min(sequence.output_tokens - sequence.generated for sequence, _ in self._plan) - 1
        occupancy = sum(sequence.computed for sequence in self.running) / self._capacity
        return self.pass_ends_at + passes * self.config.timing.decode_ms(occupancy)

    def _plan_running(self, budget: int) -> int:
        """Decodes and unfinished prefills, oldest first; the newest are preempted when memory runs out.

        Returns the tokens left for new sequences: none after a preemption, or the victim would come right back.
        """
        index = 0
        preempted = False
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            tokens = min(sequence.prompt_tokens + sequence.generated - sequence.computed, budget)
            while self._blocks_to_extend(sequence, tokens) > self.cache.available_blocks:
                preempted = True
                victim = self.running.pop()
                self._preempt(victim)
                if victim is sequence:
                    return 0
            self._extend(sequence, tokens)
            self._plan.append((sequence, tokens))
            budget -= tokens
            index += 1
        return 0 if preempted else budget

    def _plan_waiting(self, budget: int, now: float) -> int:
        """Admit in order of arrival while tokens, places and blocks last. Returns how many adapters it loads."""
        lora_loads = 0
        active_loras = {sequence.lora for sequence in self.running if sequence.lora is not None}
        held_back: list[Sequence] = []
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            sequence = self.waiting[0]
            lora = sequence.lora
            if lora is not None and lora not in active_loras and len(active_loras) >= self.config.max_loras:
                held_back.append(self.waiting.popleft())
                continue
            total = sequence.prompt_tokens + sequence.generated
            block_size = self.config.block_size
            hits = sequence.full_blocks  # of one whose blocks were fetched
            if not hits:
                hits = self.cache.count_cached(sequence.blocks, (total - 1) // block_size)
                if self._fetches(sequence, hits, (total - 1) // block_size, now):
                    self.waiting.popleft()
                    continue
            carried = total - 1 - hits * block_size if sequence.carried and not sequence.generated else 0
            tokens = min(total - hits * block_size - carried, budget)
            needed = -(-(hits * block_size + carried + tokens) // block_size) - hits
            if not sequence.full_blocks:
                needed += self.cache.idle_among(sequence.blocks[:hits])
            if needed > self.cache.available_blocks:
                break
            self.waiting.popleft()
            self.running.append(sequence)
            if not sequence.full_blocks:
                self.cache.acquire_blocks(sequence.blocks[:hits])
            sequence.full_blocks = hits
            sequence.computed = hits * block_size
            if carried:
                self._extend(sequence, carried)
                sequence.computed += carried
            if math.isnan(sequence.scheduled_at):
                sequence.scheduled_at = now
                sequence.cached_tokens = sequence.computed
                self.counters.prompt_tokens += sequence.prompt_tokens
                self.counters.cached_tokens += sequence.cached_tokens
            if lora is not None:
                active_loras.add(lora)
                lora_loads += self._use_lora(lora)
            self._extend(sequence, tokens)
            self._plan.append((sequence, tokens))
            budget -= tokens
        self.waiting.extendleft(reversed(held_back))
        return lora_loads

    def _fetches(self, sequence: Sequence, hits: int, limit: int, now: float) -> bool:
        """Begin to fetch the blocks after the first `hits` that host memory has, if there is room for them."""
        if self.host is None:
            return False
        kept = self.host.count_kept(sequence.blocks, hits, limit)
        found = sequence.blocks[: hits + kept]
        if not kept or kept + self.cache.idle_among(found) > self.cache.available_blocks:
            return False
        self.host.use_blocks(found[hits:])
        self.cache.acquire_blocks(found)
        sequence.full_blocks = hits + kept
        tokens = kept * self.config.block_size
        self.counters.fetched_tokens += tokens
        self.link.begin_fetch(sequence, now, tokens * self.config.fetch_token_ms)
        return True

    def _use_lora(self, lora: str) -> int:
        loads = 0 if self._resident_loras.pop(lora, ...) is None else 1
        self._resident_loras[lora] = None
        if len(self._resident_loras) > self.config.max_loras:
            del self._resident_loras[next(iter(self._resident_loras))]
        return loads

    def _blocks_to_extend(self, sequence: Sequence, tokens: int) -> int:
        held = sequence.full_blocks + sequence.has_partial
        return -(-(sequence.computed + tokens) // self.config.block_size) - held

    def _extend(self, sequence: Sequence, tokens: int) -> None:
        """Take the blocks for `tokens` more; they are matchable at once, within the same pass."""
        full, tail = divmod(sequence.computed + tokens, self.config.block_size)
        if full > sequence.full_blocks:
            if sequence.has_partial:
                self.cache.release_partial()
                sequence.has_partial = False
            while len(sequence.blocks) < full:
                sequence.blocks.append(self._next_unnamed)
                self._next_unnamed += 1
            self.cache.acquire_blocks(sequence.blocks[sequence.full_blocks : full])
            sequence.full_blocks = full
        if tail and not sequence.has_partial:
            self.cache.acquire_partial()
            sequence.has_partial = True

    def _release(self, sequence: Sequence) -> None:
        if sequence.has_partial:
            self.cache.release_partial()
            sequence.has_partial = False
        self.cache.release_blocks(sequence.blocks[: sequence.full_blocks])
        sequence.full_blocks = 0

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the head of the queue; prompt and output so far are computed again."""
        self._release(sequence)
        sequence.computed = 0
        self.waiting.appendleft(sequence)
        self.counters.preemptions += 1
