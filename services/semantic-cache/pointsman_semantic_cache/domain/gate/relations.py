"""Small words that say how the others belong together: who gives and who gets, whether it was or is, which of them."""

from collections.abc import Mapping
from typing import Final

from pointsman_semantic_cache.domain.gate.vocabulary import FUNCTION_WORDS

_GOVERNING: Final = (
    "to|toward|towards|onto|unto|into", "in|inside", "from", "for", "of", "by", "with", "on|upon", "off", "at", "about",
    "over|above", "under|below|beneath", "through|throughout", "between|among|amongst", "against", "within",
    "until|till", "since", "via", "per", "during", "near|beside|besides", "behind", "across", "along", "around",
    "beyond", "out", "up", "down", "than", "as", "like", "and", "or", "but", "excluding", "only", "plus", "minus",
    "versus|vs", "before", "after", "outside", "despite", "then",
)  # fmt: skip
GOVERNING: Final[Mapping[str, int]] = {
    word: number for number, group in enumerate(_GOVERNING) for word in group.split("|")
}
"""Word → what it makes of the word behind it. `mail to bob` isn't `mail from bob`."""
LOOSE: Final = frozenset((GOVERNING["to"], GOVERNING["in"], GOVERNING["of"]))
"""Where other words differ too, one may stand for another: convert to euros, how much in euros."""
COUNTED: Final = len(_GOVERNING)
"""The relation between a number and the unit after it: `10 miles in meters` isn't `10 meters in miles`."""
NEGATED: Final = len(_GOVERNING) + 1
"""The relation of a negation to the word after it: `not eat but drink` isn't `eat but not drink`."""

ALWAYS: Final[Mapping[str, int]] = {
    word: number
    for number, group in enumerate((
        "from", "by", "with", "and", "or", "but|excluding", "than", "only|solely|merely", "against", "until|till",
        "since", "via", "within", "between|among|amongst", "other|another|else", "same", "too", "unlike", "despite",
        "although|though", "whether", "ever", "again", "still", "yet", "already", "almost|nearly", "both", "either",
        "rather", "versus|vs", "plus", "minus", "own", "few", "also",
    ))
    for word in group.split("|")
}  # fmt: skip
"""Word → its group: both texts have one of it, or neither."""

TENSE: Final = 0
MODAL: Final = 1
PERSON: Final = 2
PRESENT: Final = 0
_EITHER: Final = (
    ("is|are|am|do|does|has|have|isnt|arent|dont|doesnt|hasnt|havent|aint",
     "was|were|did|had|wasnt|werent|didnt|hadnt", "will|wont|shall|gonna"),
    ("can|could|may|might|cant|cannot|couldnt", "should|ought|shouldnt", "must|mustnt", "would|wouldnt"),
    ("i|me|my|mine|myself|we|us|our|ours|ourselves", "you|your|yours|yourself", "he|him|his|himself",
     "she|her|hers|herself", "they|them|their|theirs|themselves"),
    ("this|these", "that|those"),
    ("here", "there"),
    ("all|every|each|entire|whole", "some|several"),
    ("once", "always", "often|usually", "sometimes|occasionally", "rarely|seldom"),
)  # fmt: skip
SAID: Final[Mapping[str, tuple[int, int]]] = {
    word: (dimension, side)
    for dimension, group in enumerate(_EITHER)
    for side, words in enumerate(group)
    for word in words.split("|")
}
"""Word → dimension and side: of two texts that say something about it both say the same."""
SOME: Final = (5, 1)
"""The side that no text may leave out: `delete some users` isn't `delete users`."""

TO_ME: Final = frozenset((
    "show", "give", "tell", "let", "help", "find", "get", "teach", "write", "send", "make", "bring",
    "remind", "explain",
))  # fmt: skip
"""Before `me` or `us`, who asks and not what is asked about."""

ASKED_BY_A_NOUN: Final = (
    "time",
    "date",
    "day",
    "year",
    "month",
    "moment",
    "hour",
    "place",
    "location",
    "city",
    "country",
    "person",
    "people",
    "name",
    "team",
    "author",
    "reason",
    "cause",
    "way",
    "method",
    "step",
)
"""`What is the time` asks when. Without one of them `what is love` isn't `where is love`."""

_ARTICLES: Final = frozenset((
    "the", "a", "an", "der", "die", "das", "den", "dem", "des", "ein", "eine", "einen", "einem", "einer", "le", "la",
    "les", "un", "une", "el", "los", "las", "una", "unos", "unas", "il", "lo", "i", "gli", "uno", "o", "os", "as", "um",
    "uma", "de", "het", "een",
))  # fmt: skip
_AMBIGUOUS: Final = frozenset(("de", "o", "i", "as", "des", "die"))
"""Articles of one language that are more than that in another."""
FOREIGN: Final = (
    frozenset(word for language, words in FUNCTION_WORDS.items() if language != "en" for word in words)
    | frozenset((
        "außer", "ausser", "gegen", "vor", "seit", "während", "zwischen", "ob", "weil", "dass", "jeder",
        "alle", "einige",
        "contre", "depuis", "avant", "après", "entre", "vers", "chez", "tous", "toutes", "sauf", "hormis",
        "était", "sera",
        "contra", "desde", "hasta", "antes", "después", "sobre", "todos", "todas", "salvo", "excepto", "menos", "fue",
        "contro", "prima", "dopo", "fra", "tra", "tutti", "tutte", "tranne", "dal", "dalla", "alla", "sul", "sulla",
        "até", "depois", "foi", "pelo", "pela", "tegen", "sinds", "tussen", "tot", "behalve", "alle", "werd",
    ))
) - (_ARTICLES - _AMBIGUOUS)  # fmt: skip
"""Small words of the other languages. Their effect isn't known, so they have to be the same."""
