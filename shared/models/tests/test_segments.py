"""Encoding piece by piece gives what encoding the whole gives."""

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer

from pointsman_models.tokenization.segments import SegmentEncoder, little_endian
from pointsman_testing.tiny_tokenizer import SENTENCES, SPECIAL, tiny_tokenizer

MANY = 2**20
UNKNOWN = "<unk>"


def byte_level() -> Tokenizer:
    return Tokenizer.from_str(tiny_tokenizer())


def with_space() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


def digits_apart() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    pattern = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def pieces(scheme: str) -> Tokenizer:
    tokenizer = Tokenizer(Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    special = [AddedToken(content, normalized=False, special=True) for content in SPECIAL]
    trainer = UnigramTrainer(vocab_size=300, special_tokens=[*special, UNKNOWN], unk_token=UNKNOWN, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES * 5, trainer)
    return tokenizer


def older_pieces() -> Tokenizer:
    tokenizer = Tokenizer(BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = [AddedToken(content, normalized=False, special=True) for content in SPECIAL]
    tokenizer.train_from_iterator(
        SENTENCES * 5, BpeTrainer(vocab_size=300, special_tokens=[UNKNOWN, *special], show_progress=False)
    )
    return tokenizer


def words() -> Tokenizer:
    tokenizer = Tokenizer(WordPiece(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [AddedToken(content, normalized=False, special=True) for content in SPECIAL]
    tokenizer.train_from_iterator(
        SENTENCES * 5, WordPieceTrainer(vocab_size=300, special_tokens=[UNKNOWN, *special], show_progress=False)
    )
    return tokenizer


def greedy_tokens() -> Tokenizer:
    """Added tokens that look at their neighbours, overlap, or are looked for later."""
    tokenizer = byte_level()
    tokenizer.add_tokens(  # pyright: ignore[reportUnknownMemberType] - its list has no type
        [
            AddedToken("<|eot_id|><|im", normalized=False),
            AddedToken("track", single_word=True, normalized=False),
            AddedToken("<|left|>", lstrip=True, normalized=False),
            AddedToken("<|right|>", rstrip=True, normalized=False),
            AddedToken("ends_x", normalized=False),
            AddedToken("x<|im_start", normalized=False),
            AddedToken("points", normalized=True),
            AddedToken(" <s>", normalized=False),
        ]
    )
    return tokenizer


KINDS = {
    "byte-level": byte_level,
    "byte-level with a space in front": with_space,
    "digits apart": digits_apart,
    "pieces, space always": lambda: pieces("always"),
    "pieces, space at the start": lambda: pieces("first"),
    "older pieces": older_pieces,
    "words": words,
    "greedy tokens": greedy_tokens,
}


@cache
def encoder_of(kind: str, cache_bytes: int = MANY) -> tuple[Tokenizer, SegmentEncoder]:
    tokenizer = KINDS[kind]()
    described: dict[str, Any] = json.loads(tokenizer.to_str())
    return tokenizer, SegmentEncoder(tokenizer, described["pre_tokenizer"], cache_bytes)


BITS = (
    *SPECIAL, *SENTENCES, "track", "x<|im_start", "<|eot_id|><|im", "<|left|>", "<|right|>", "ends_x", "points", " <s>",
    " ", "  ", "\n\n", "x", "7", "1234", "é", "e\u0301", "日本", "<|", "|>", "_", "'s",
)  # fmt: skip
texts = st.lists(st.sampled_from(BITS) | st.text(max_size=6), max_size=14).map("".join)


@pytest.mark.requirement("S4-6")
@pytest.mark.parametrize("kind", KINDS)
@given(text=texts)
def test_pieces_give_the_tokens_of_the_whole(kind: str, text: str) -> None:
    tokenizer, encoder = encoder_of(kind)
    assert encoder.encode_text(text) == little_endian(tokenizer.encode(text, add_special_tokens=False).ids)


@given(text=texts)
def test_a_table_that_is_too_small_changes_nothing(text: str) -> None:
    tokenizer, encoder = encoder_of("byte-level", 2000)
    assert encoder.encode_text(text) == little_endian(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.requirement("S4-12")
def test_the_next_turn_encodes_only_what_is_new() -> None:
    _, encoder = encoder_of("digits apart")
    turns = [
        f"<|start_header_id|>user<|end_header_id|>\n\nQuestion {turn}{SENTENCES[0]}<|eot_id|>" for turn in range(9)
    ]
    encoder.encode_text("".join(turns[:-1]))
    before = encoder.misses
    encoder.encode_text("".join(turns))
    assert encoder.misses - before == len("\n\nQuestion 8") + len(SENTENCES[0]) + len("<|eot_id|>")


def test_where_a_piece_stands_matters_to_some_tokenizers_and_their_texts_stay_whole() -> None:
    _, encoder = encoder_of("pieces, space at the start")
    encoder.encode_text("<|im_start|>a")
    before = encoder.misses
    encoder.encode_text("<|im_start|>b")
    assert encoder.misses - before == len("<|im_start|>b")
