"""Asks an engine for one of its data-parallel ranks.

vLLM reads the header for chats, completions and messages (`entrypoints/generate/base/serving.py` of 0.32), SGLang since
sgl-project/sglang #19832; before that it read a member of the body.
"""

from typing import Final

from pointsman_contracts.journey import BodyEdit
from pointsman_contracts.reply import ChosenEndpoint, PrefillLeg
from pointsman_edge.sending.header_edits import Header

RANK_HEADER: Final = b"x-data-parallel-rank"


def rank_header(endpoint: ChosenEndpoint) -> tuple[Header, ...]:
    """The header that asks the endpoint for its rank; empty where it has none, or where the body asks."""
    if endpoint.rank is None or endpoint.rank_field:
        return ()
    return ((RANK_HEADER, b"%d" % endpoint.rank),)


def rank_edits(endpoint: ChosenEndpoint) -> tuple[BodyEdit, ...]:
    """The member of the body that does."""
    if endpoint.rank is None or not endpoint.rank_field:
        return ()
    return (BodyEdit(field=endpoint.rank_field, value=endpoint.rank),)


def place_of(leg: PrefillLeg) -> ChosenEndpoint:
    """The endpoint that computes the prompt."""
    return ChosenEndpoint(worker=leg.worker, url=leg.url, rank=leg.rank, rank_field=leg.rank_field)
