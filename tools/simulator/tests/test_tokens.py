"""The stand-in tokenizer keeps what makes prefix reuse work."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pointsman_simulator.tokens import fingerprint, generate, name_blocks, natural_length, render_chat, tokenize

texts = st.text(st.characters(codec="utf-8"), max_size=60)


@given(texts)
def test_four_bytes_are_a_token(text: str) -> None:
    assert len(tokenize(text)) == -(-len(text.encode()) // 4)


@given(st.lists(texts, min_size=1, max_size=4), texts, st.integers(0, 40))
def test_the_next_turn_of_a_chat_continues_the_tokens_of_prompt_and_answer(
    turns: list[str], question: str, length: int
) -> None:
    messages = [{"role": "user", "content": text} for text in turns]
    prompt = render_chat(messages)
    answer = "".join(generate(fingerprint(prompt), length))
    seen = np.concatenate([prompt, tokenize(answer)])
    assert len(seen) == len(prompt) + length
    following = [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": question}]
    assert (render_chat(following)[: len(seen)] == seen).all()


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(0, 40))
def test_block_names_depend_on_all_tokens_before_and_on_the_root(values: list[int], changed: int) -> None:
    tokens = np.array(values, dtype="<u4")
    names = name_blocks("m", tokens, 4)
    assert len(names) == len(values) // 4
    assert len({*names, *name_blocks("lora", tokens, 4)}) == 2 * len(names)
    if changed < len(values):
        other = tokens.copy()
        other[changed] ^= 1
        same = [left == right for left, right in zip(names, name_blocks("m", other, 4), strict=True)]
        assert same == [index < changed // 4 for index in range(len(names))]


def test_answers_have_the_mean_length_asked_for() -> None:
    lengths = [natural_length(seed, 120.0) for seed in range(4000)]
    assert min(lengths) >= 16
    assert 114 < sum(lengths) / len(lengths) < 126
