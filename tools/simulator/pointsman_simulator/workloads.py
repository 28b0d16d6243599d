"""Synthetic workloads, for comparing policies without a trace.

Each shape is a function of a seeded random source; lengths are in tokens, times in ms. Conversations begin at any
time of the span (and before it, so that it begins in the middle of things); what falls outside is left out.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from pointsman_core.plugins import unknown
from pointsman_simulator.coding_agents import coding_agents
from pointsman_simulator.trace import TraceRequest
from pointsman_simulator.workshop import TOKENS_PER_SECOND, Workshop


def chat(shop: Workshop) -> list[TraceRequest]:
    """Multi-turn chat: each turn repeats the conversation so far; people think half a minute."""
    systems = [(shop.new_text(), shop.draw_length(600, 0.8)) for _ in range(12)]
    requests: list[TraceRequest] = []
    while len(requests) < shop.count:
        at = shop.any_time(before=200_000.0)
        system, session = systems[shop.draw_zipf(len(systems))], shop.new_text()
        context = system[1]
        for _ in range(1 + int(shop.random.expovariate(1 / 3.5))):
            context += shop.draw_length(120, 1.2, 20_000)
            answer = shop.draw_length(250, 0.7, 4_000)
            if shop.is_inside(at):
                requests.append(shop.make_request(at, system, session, context, answer))
            context += answer
            at += answer / TOKENS_PER_SECOND * 1000 + shop.random.expovariate(1 / 30_000.0)
    return requests


def system_prompts(shop: Workshop) -> list[TraceRequest]:
    """Single questions behind a few long system prompts."""
    systems = [(shop.new_text(), shop.draw_length(3000, 0.5)) for _ in range(24)]
    requests: list[TraceRequest] = []
    for _ in range(shop.count):
        system = systems[shop.draw_zipf(len(systems))]
        prompt = system[1] + shop.draw_length(150, 1.0, 8_000)
        at = shop.any_time()
        requests.append(shop.make_request(at, system, shop.new_text(), prompt, shop.draw_length(180, 0.8, 2_000)))
    return requests


def rag(shop: Workshop) -> list[TraceRequest]:
    """Questions about documents; popular documents are asked about again and again."""
    documents = [(shop.new_text(), shop.draw_length(12_000, 0.7, 60_000)) for _ in range(400)]
    requests: list[TraceRequest] = []
    for _ in range(shop.count):
        document = documents[shop.draw_zipf(len(documents), 0.9)]
        prompt = document[1] + shop.draw_length(80, 0.6, 1_000)
        at = shop.any_time()
        requests.append(shop.make_request(at, document, shop.new_text(), prompt, shop.draw_length(200, 0.6, 2_000)))
    return requests


def agents(shop: Workshop) -> list[TraceRequest]:
    """Agents with tools: a long tool description, many short steps that each add a tool's result."""
    tools = [(shop.new_text(), shop.draw_length(5000, 0.4)) for _ in range(6)]
    requests: list[TraceRequest] = []
    while len(requests) < shop.count:
        at = shop.any_time(before=60_000.0)
        tool, task = tools[shop.draw_zipf(len(tools))], shop.new_text()
        context = tool[1] + shop.draw_length(300, 0.8)
        for _ in range(2 + int(shop.random.expovariate(1 / 8.0))):
            answer = shop.draw_length(70, 0.6, 1_000)
            if shop.is_inside(at):
                requests.append(shop.make_request(at, tool, task, context, answer))
            context += answer + shop.draw_length(700, 1.0, 12_000)
            at += answer / TOKENS_PER_SECOND * 1000 + shop.random.expovariate(1 / 3000.0)
    return requests


def adapters(shop: Workshop) -> list[TraceRequest]:
    """Many LoRA adapters by Zipf's law, each with a prompt of its own."""
    systems = [(shop.new_text(), shop.draw_length(400, 0.6)) for _ in range(40)]
    requests: list[TraceRequest] = []
    for _ in range(shop.count):
        adapter = shop.draw_zipf(len(systems), 0.8)
        system = systems[adapter]
        prompt = system[1] + shop.draw_length(300, 1.0, 8_000)
        at = shop.any_time()
        answer = shop.draw_length(150, 0.7, 2_000)
        requests.append(
            shop.make_request(
                at=at,
                shared=system,
                own=shop.new_text(),
                prompt_tokens=prompt,
                output_tokens=answer,
                lora=f"adapter-{adapter}",
            )
        )
    return requests


def bursts(shop: Workshop) -> list[TraceRequest]:
    """Long and short prompts in bursts that arrive at one instant; a third continue an earlier one."""
    requests: list[TraceRequest] = []
    sessions: list[tuple[int, int]] = []
    at = 0.0
    while len(requests) < shop.count:
        at += shop.random.expovariate(shop.count / shop.span_ms / 9.0)
        for _ in range(1 + int(shop.random.expovariate(1 / 8.0))):
            if sessions and shop.random.random() < 0.35:
                text, context = sessions.pop(max(0, len(sessions) - 1 - int(shop.random.expovariate(1 / 120.0))))
            else:
                text, context = shop.new_text(), 0
            prompt = context + shop.draw_length(2500, 1.5)
            answer = shop.draw_length(200, 0.9, 3_000)
            requests.append(shop.make_request(at, (0, 0), text, min(prompt, 120_000), answer))
            if prompt + answer < 100_000:
                sessions.append((text, prompt + answer))
    return requests


WORKLOADS: Final[dict[str, Callable[[Workshop], list[TraceRequest]]]] = {
    "chat": chat,
    "system-prompts": system_prompts,
    "rag": rag,
    "agents": agents,
    "adapters": adapters,
    "bursts": bursts,
}


CLOSED_LOOPS: Final[dict[str, Callable[[Workshop], list[TraceRequest]]]] = {"coding-agents": coding_agents}
"""Workloads whose requests wait for the ends of others."""
NAMES: Final = (*WORKLOADS, *CLOSED_LOOPS)


def generate_workload(name: str, count: int, rate: float, seed: int = 0, block_size: int = 64) -> list[TraceRequest]:
    """`count` requests of a shape, sorted, at `rate` requests/s on average. Raises
    ValueError naming the shapes."""
    shape = WORKLOADS.get(name) or CLOSED_LOOPS.get(name)
    if shape is None:
        raise ValueError(unknown("workload", name, NAMES))
    shop = Workshop(random.Random(f"{name}:{seed}"), block_size, count, count / rate * 1000)
    requests = shape(shop)
    if name in CLOSED_LOOPS:
        return requests
    # Shapes may come to a few more, or end a little early or late: neither count nor rate is left to chance.
    requests = sorted(shop.random.sample(requests, count), key=lambda one: one.arrival_ms)
    first, last = requests[0].arrival_ms, requests[-1].arrival_ms
    stretch = shop.span_ms / (last - first) if last > first else 1.0
    return [replace(one, arrival_ms=(one.arrival_ms - first) * stretch) for one in requests]
