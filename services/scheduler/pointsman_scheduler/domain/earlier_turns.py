"""Requests that continue a response whose turns only its engine has."""

from pointsman_contracts.journey import RequestFacts
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.candidates import Candidates


def count_earlier_turns(facts: RequestFacts, keepers: Candidates, matched: Floats) -> None:
    """Count the earlier turns, in whole blocks, as cached by the engine that keeps the response. Their blocks have no
    names here, so nothing tells which of them it has evicted. `matched`: prompt tokens by worker; this changes it."""
    if facts.workers is not None and facts.continued_tokens:
        matched[keepers.indices()] = facts.continued_tokens // facts.block_tokens * facts.block_tokens
