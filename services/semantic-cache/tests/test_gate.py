"""The gate distinguishes by their words questions that an embedding takes for one another."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_embedding.embedder import Embedder
from pointsman_embedding.embedders import LexicalEmbedder, OnnxEmbedder
from pointsman_semantic_cache.domain.entry import decode_signature, encode_signature
from pointsman_semantic_cache.domain.gate.comparing import difference
from pointsman_semantic_cache.domain.gate.reading import read

from .pairs import APART, PAIRS

QUESTIONS = st.sampled_from([text for pair in PAIRS for text in (pair.asked, pair.paraphrase)])


async def _answers(embedder: Embedder, asked: str, later: str) -> bool:
    one, other = await embedder.embed(asked), await embedder.embed(later)
    assert one is not None
    close = other is not None and float(one @ other) >= embedder.threshold
    return close and difference(read(later), read(asked)) is None


def _share(hits: list[bool]) -> float:
    return sum(hits) / len(hits)


@pytest.mark.requirement("CACHE-2")
async def test_with_a_model_no_different_question_is_answered_and_close_paraphrases_are(model_folder: Path) -> None:
    embedder = OnnxEmbedder(model_folder)
    wrong = [pair.different for pair in PAIRS if await _answers(embedder, pair.asked, pair.different)]
    hits = [await _answers(embedder, pair.asked, pair.paraphrase) for pair in PAIRS]
    assert len(PAIRS) == 40
    assert wrong == []
    assert _share(hits) >= 0.4
    await embedder.close()


async def test_without_a_model_no_different_question_is_answered_either_and_some_paraphrases_are() -> None:
    embedder = LexicalEmbedder()
    wrong = [pair.different for pair in PAIRS if await _answers(embedder, pair.asked, pair.different)]
    hits = [await _answers(embedder, pair.asked, pair.paraphrase) for pair in PAIRS]
    assert wrong == []
    assert _share(hits) >= 0.3


@pytest.mark.parametrize("kind", sorted({pair.kind for pair in PAIRS}))
def test_whatever_an_embedding_says_the_gate_alone_tells_the_pairs_apart(kind: str) -> None:
    pairs = [pair for pair in PAIRS if pair.kind == kind]
    assert len(pairs) == 8
    assert [pair for pair in pairs if difference(read(pair.asked), read(pair.different)) is None] == []


@pytest.mark.parametrize("kind", APART)
def test_a_sign_or_a_small_word_tells_two_questions_apart_whatever_an_embedding_says(kind: str) -> None:
    pairs = [*APART[kind], *((other, one) for one, other in APART[kind])]
    assert len(APART[kind]) >= 12
    assert [pair for pair in pairs if difference(read(pair[0]), read(pair[1])) is None] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Can you tell me the capital of France?", "What is the capital of France?"),
        ("what's the capital of france", "what is the capital of france"),
        ("How do I reset my router?", "How can I reset my router?"),
        ("5GB of data", "5 gb of data"),
        ("½ cup of sugar", "half cup of sugar"),
        ("“What is love?”", "What is love?"),
        ("Explain monads in Haskell", "Please explain monads in Haskell"),
        ("Convert 5 kg to pounds", "Transform 5 kg to pounds"),
        ("Could you explain recursion?", "Explain recursion."),
        ("Who wrote Dune?", "Who was the author of Dune?"),
        ("I'd like to know how tall Everest is", "How tall is Everest?"),
    ],
)
def test_small_words_that_change_nothing_tell_nothing_apart(one: str, other: str) -> None:
    assert difference(read(one), read(other)) is None
    assert difference(read(other), read(one)) is None


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        ("Is 5 greater than 3?", "Is 3 greater than 5?", "number"),
        ("Is 1,000 enough?", "Is 1000.0 enough?", None),
        ("Does the dog chase the postman?", "Does the postman chase the dog?", "words"),
        ("Was Einstein born in Ulm?", "was einstein born in ulm?", None),
        ("Set it to 05/06/2024", "Set it to 06/05/2024", "words"),
        ("Read the file config.yaml", "Read the file config.yml", "words"),
        ("Who wrote the song?", "When was the song written?", "opposite"),
        ("restaurants in sao paulo", "restaurants in los angeles", "words"),
        ("How do I fix a flat tyre?", "How do I repair a flat tyre?", None),
        ("How do I boil an egg?", "How do I fry an egg?", "words"),
        ("Did Alice repair what Bob broke?", "Did Bob fix what Alice broke?", "words"),
        ("How do I travel from Paris to London?", "How do I travel from London to Paris?", "relation"),
        ("Is this mushroom edible in Rome?", "Is this mushroom inedible in a region of Rome?", "words"),
        ("Can't I eat this?", "Can I eat this?", "negation"),
        ("Is it US law?", "Is it UK law?", "words"),
        ("Call it 'alpha'.", "Call it 'beta'.", "words"),
        ('Print "yes" when done', 'Print "no" when done', "negation"),
        ("", "", None),
    ],
)
def test_words_that_change_an_answer_are_seen(one: str, other: str, reason: str | None) -> None:
    assert difference(read(one), read(other)) == reason
    assert difference(read(other), read(one)) == reason


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("convert celsius to fahrenheit", "convert fahrenheit to celsius"),
        ("how many feet in a meter", "how many meters in a foot"),
        ("Is ibuprofen safe?", "Is ibuprofen safe when pregnant?"),
        ("Is ibuprofen safe for a pregnant woman?", "Is ibuprofen safe for a woman?"),
        ("Which visa do I need for Japan?", "Which visa do I need for Japan with a German passport?"),
        ("What do I owe you?", "What do you owe me?"),
        ("Did he leave her?", "Did she leave him?"),
        ("Can my landlord evict me?", "Can I evict my landlord?"),
        ("translate english to french", "translate french to english"),
        ("does the buyer pay the seller", "does the seller pay the buyer"),
        ("best food for old dogs", "best food for dogs"),
        ("merge main into feature", "merge feature into main"),
    ],
)
def test_words_left_out_or_in_another_order_make_another_question(one: str, other: str) -> None:
    assert difference(read(one), read(other)) is not None
    assert difference(read(other), read(one)) is not None


@settings(max_examples=60, deadline=None)
@given(QUESTIONS, st.integers(0, 20), st.sampled_from(["pregnant", "wooden", "zanthomyl"]))
def test_a_word_more_anywhere_is_seen(question: str, place: int, word: str) -> None:
    words = question.split()
    words.insert(place % (len(words) + 1), word)
    assert difference(read(question), read(" ".join(words))) is not None


@settings(max_examples=40, deadline=None)
@given(QUESTIONS, st.integers(0, 20), st.sampled_from(["not", "never", "without"]))
def test_a_negation_anywhere_is_seen(question: str, place: int, word: str) -> None:
    words = question.split()
    words.insert(place % (len(words) + 1), word)
    assert difference(read(question), read(" ".join(words))) is not None


@settings(max_examples=40, deadline=None)
@given(QUESTIONS, st.integers(0, 9999), st.integers(0, 9999))
def test_another_number_is_seen(question: str, one: int, other: int) -> None:
    same = difference(read(f"{question} {one}"), read(f"{question} {other}")) is None
    assert same == (one == other)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80))
def test_any_text_can_be_read_is_like_itself_and_survives_the_wire(text: str) -> None:
    signature = read(text)
    assert difference(signature, signature) is None
    assert decode_signature(encode_signature(signature)) == signature


def test_a_signature_has_no_word_of_the_text() -> None:
    told = encode_signature(read("The patient Mallory Quux takes zanthomyl")).decode().lower()
    assert not [word for word in ("patient", "mallory", "quux", "take", "zanthomyl") if word in told]
