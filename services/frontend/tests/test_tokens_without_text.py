"""vLLM writes an event for a token without text only where it returns token ids. A client that didn't ask for ids gets
the events that it would have had."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman_edge.sending.unasked_ids import WithoutIds
from pointsman_frontend.domain.resuming.kept_events import KeptChoices, KeptTokens

TOKENS = st.lists(st.sampled_from(["", "a", " {}", '{\\"delta\\":{}}']), min_size=1, max_size=200)


def event(text: str, ids: str) -> bytes:
    delta = f'{{"content":"{text}"}}' if text else "{}"
    choice = f'{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":null,"token_ids":{ids}}}'
    return f'data: {{"id":"x","object":"chat.completion.chunk","choices":[{choice}]}}\n\n'.encode()


END = b'data: {"id":"x","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","token_ids":null}]}\n\n'


@given(TOKENS, st.lists(st.integers(1, 5), min_size=1))
def test_events_that_only_ids_have_made_reach_no_client_that_did_not_ask_for_ids(
    texts: list[str], sizes: list[int]
) -> None:
    events = [event(text, f"[{number}]") for number, text in enumerate(texts)]
    pieces = [b"".join(events[at : at + sizes[0]]) for at in range(0, len(events), sizes[0])]
    unasked = b"".join([event(text, "null") for text in texts if text]) + END
    passing = WithoutIds(None)
    assert b"".join(passing.rewrite_bytes(piece) for piece in (*pieces, END)) == unasked
    keepers = (
        KeptTokens(hides=True, thinking_end=None),
        KeptChoices(one=True, keeps_text=False, hides=True, thinking_end=None),
    )
    for keeper in keepers:
        out = b""
        for piece in (*pieces, END):
            usual = keeper.keep_usual(piece)
            out += keeper.keep_events(piece) if usual is None else usual
        assert out == unasked
        assert list(keeper.read_stream().choices[0].ids) == list(range(len(texts)))
    asking = KeptTokens(hides=False, thinking_end=None)
    assert b"".join(asking.keep_usual(piece) or asking.keep_events(piece) for piece in pieces) == b"".join(pieces)
