"""`formula.delay` for a few workers, in numbers: 11 us of a decision among eight less than in columns, 4 % of a request
(`python -m benchmarks.fast_paths`). From some 40 workers on, columns cost less.
"""

from collections.abc import Sequence

from pointsman_delay.formula import EngineDelay, Terms


def delays(
    engines: Sequence[EngineDelay[float]], held: Sequence[float], prompt: int, worth: float, terms: Terms
) -> list[float]:
    """Like `formula.delay`: numbers take branches where columns need arithmetic. Both give the same floats, bit for
    bit, as long as token counts are whole.

    `held`: prompt tokens that each worker holds, less than `prompt`. `worth`: the part of the prompt's prefill that one
    more copy of the longest known prefix would save later requests, in [0,1)."""
    (
        now, prompt_and_answer, output, others, budget, full_pass, own_step, slows_each, weight, coming, spared,
        prefill, linear, square, pairs,
    ) = terms  # fmt: skip
    best = max(held) if worth else 0.0  # without worth no worker holds less than this
    costs: list[float] = []
    for (
        free_at, waiting, passes, before, last, joined_ms, shared, step, turn,
        there, company, slowed, room, stall, speed,
    ), hit in zip(engines, held, strict=True):  # fmt: skip
        uncached = prompt - hit
        total = waiting + uncached
        if total < budget:
            after_passes = 1.0
            after = total * (linear + square * total) + prefill + pairs * uncached * (hit + 0.5 * uncached)
            ttft = (free_at - now + turn if free_at > now else turn) + after + step
        else:
            filled = total // budget
            rest = total - filled * budget
            after_passes = filled + (rest > 0.0)
            after = rest * (linear + square * rest) + filled * full_pass + prefill * after_passes
            after += pairs * uncached * (hit + 0.5 * uncached)
            ttft = (free_at - now + turn if free_at > now else turn) + after + after_passes * step
        work = after - before
        if room < prompt_and_answer:
            ttft += (prompt_and_answer - room) * stall * others
        if shared:
            joined = last + uncached
            if joined > budget:
                joined = budget
            ttft += shared * (joined * (linear + square * joined) - joined_ms)
        price = there + coming
        cost = weight * ttft + price * work + output * (own_step + company) + slows_each * slowed
        cost -= spared * (after_passes - passes)
        if hit < best:
            cost -= worth * (best - hit) / uncached * work * (price + weight)
        costs.append(cost * speed)
    return costs
