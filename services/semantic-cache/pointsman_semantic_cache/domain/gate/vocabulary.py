"""Words that the gate knows. English first; of other languages what tells them apart, and how they negate."""

from collections.abc import Mapping
from typing import Final

NEGATIONS: Final = frozenset((
    "not", "no", "never", "none", "nobody", "nothing", "nowhere", "neither", "nor", "without", "cannot", "cant",
    "dont", "doesnt", "didnt", "isnt", "arent", "wasnt", "werent", "wont", "wouldnt", "shouldnt", "couldnt", "hasnt",
    "havent", "hadnt", "mustnt", "neednt", "aint", "hardly", "barely", "except", "unless", "instead", "avoid",
    "nicht", "kein", "keine", "keinen", "keiner", "keinem", "ohne", "nie", "niemals", "nichts",
    "ne", "pas", "jamais", "sans", "aucun", "aucune", "rien",
    "nunca", "sin", "ningún", "ninguna", "nada", "jamás",
    "non", "mai", "senza", "nessun", "nessuna", "niente", "não", "sem", "nenhum", "nenhuma", "niet", "geen", "zonder",
    "kaum", "keines", "außer", "ausser", "sauf", "hormis", "salvo", "excepto", "tampoco", "nadie", "ningun", "ninguno",
    "tranne", "neanche", "nemmeno", "nessuno", "nunca", "nenhum", "exceto", "nooit", "niets", "behalve", "excluding",
    "nie", "bez", "nigdy", "inte", "utan", "aldrig", "ikke", "uten", "uden", "aldri", "ei", "nem", "nincs", "fără",
    "değil", "tidak", "bukan", "không", "rarely", "scarcely", "seldom", "refuse", "besides",
    "не", "нет", "нельзя", "без", "никогда", "不", "没", "没有", "ない", "ません",
))  # fmt: skip

NUMBER_WORDS: Final[Mapping[str, str]] = {
    **{
        word: str(value)
        for value, word in enumerate(
            (
                "zero", "", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
                "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
            )
        )
        if word
    },
    "thirty": "30", "forty": "40", "fifty": "50", "sixty": "60", "seventy": "70", "eighty": "80", "ninety": "90",
    "hundred": "100", "thousand": "1000", "million": "1000000", "billion": "1000000000", "dozen": "12", "half": "0.5",
    "quarter": "0.25", "double": "2", "twice": "2", "triple": "3", "second": "2nd", "third": "3rd", "fourth": "4th",
    "fifth": "5th", "sixth": "6th", "seventh": "7th", "eighth": "8th", "ninth": "9th", "tenth": "10th", "once": "1",
    "single": "1",
}  # fmt: skip
"""`one` isn't among them: it is a pronoun more often than a number."""

_UNITS: Final = (
    ("usd", "$", "dollar", "dollars", "bucks"), ("eur", "€", "euro", "euros"), ("gbp", "£", "pound sterling"),
    ("jpy", "¥", "yen"), ("inr", "₹", "rupee", "rupees"), ("cny", "yuan", "rmb"), ("chf", "franc", "francs"),
    ("cent", "cents", "¢"), ("btc", "bitcoin"), ("%", "percent", "percentage"), ("bps",),
    ("mm", "millimeter", "millimeters", "millimetre", "millimetres"),
    ("cm", "centimeter", "centimeters", "centimetre", "centimetres"), ("m", "meter", "meters", "metre", "metres"),
    ("km", "kilometer", "kilometers", "kilometre", "kilometres"), ("mile", "miles", "mi"),
    ("inch", "inches", "in."), ("foot", "feet", "ft"), ("yard", "yards", "yd"),
    ("mg", "milligram", "milligrams"), ("g", "gram", "grams"), ("kg", "kilogram", "kilograms", "kilo", "kilos"),
    ("lb", "lbs", "pound", "pounds"), ("oz", "ounce", "ounces"), ("ton", "tons", "tonne", "tonnes"),
    ("ml", "milliliter", "milliliters", "millilitre", "millilitres"), ("l", "liter", "liters", "litre", "litres"),
    ("gallon", "gallons", "gal"), ("cup", "cups"), ("tsp", "teaspoon", "teaspoons"),
    ("tbsp", "tablespoon", "tablespoons"), ("pint", "pints"), ("quart", "quarts"),
    ("ms", "millisecond", "milliseconds"), ("µs", "us", "microsecond", "microseconds"), ("sec", "secs", "seconds"),
    ("min", "mins", "minute", "minutes"), ("hour", "hours", "hr", "hrs", "h"), ("day", "days"), ("week", "weeks"),
    ("month", "months"), ("year", "years", "yr", "yrs"), ("decade", "decades"), ("century", "centuries"),
    ("°c", "celsius", "centigrade"), ("°f", "fahrenheit"), ("kelvin",), ("degree", "degrees", "°"),
    ("radian", "radians"), ("byte", "bytes"), ("bit", "bits"), ("kb", "kilobyte", "kilobytes"),
    ("mb", "megabyte", "megabytes"), ("gb", "gigabyte", "gigabytes"), ("tb", "terabyte", "terabytes"), ("kib",),
    ("mib",), ("gib",), ("mbps",), ("gbps",), ("hz", "hertz"), ("khz",), ("mhz",), ("ghz",),
    ("w", "watt", "watts"), ("kw", "kilowatt", "kilowatts"), ("kwh",), ("v", "volt", "volts"),
    ("amp", "amps", "ampere", "amperes"), ("ohm", "ohms"), ("joule", "joules"), ("cal", "calorie", "calories"),
    ("kcal",), ("kph", "km/h"), ("mph",), ("knot", "knots"), ("psi",), ("bar", "bars"), ("pascal", "pascals"),
    ("acre", "acres"), ("hectare", "hectares"), ("square",), ("cubic",), ("am",), ("pm",), ("rpm",), ("fps",),
    ("dozen",), ("daily",), ("weekly",), ("monthly",), ("yearly", "annual", "annually"), ("hourly",),
)  # fmt: skip
UNITS: Final[Mapping[str, str]] = {form: unit[0] for unit in _UNITS for form in unit}
SHORT_UNITS: Final = frozenset(form for form in UNITS if len(form) <= 2 and form.isalpha()) | {"am", "pm", "min", "bar"}
"""Units that are other words too, unless a number stands before them."""
DATA_UNITS: Final = frozenset(("kb", "mb", "gb", "tb", "pb", "mbps", "gbps", "kbps", "tbps"))
"""A small b is a bit and a large one a byte, where both are in use."""
CASELESS_UNITS: Final = frozenset((
    "am", "pm", "usd", "eur", "gbp", "jpy", "inr", "cny", "rmb", "chf", "btc", "kg", "km", "cm", "lb", "lbs", "oz",
    "ft", "yd", "mi", "in.", "l", "gal", "cup", "cups", "tsp", "tbsp", "sec", "secs", "min", "mins", "hr", "hrs", "yr",
    "yrs", "day", "days", "kph", "mph", "rpm", "fps", "psi", "bps", "hz", "kib", "mib", "gib", "tib", "byte",
    "bit", "bits", "week", "year", "hour", "mile", "foot", "feet", "inch", "yard", "gram", "ton", "tons", "pint",
    "cent", "euro", "yen", "watt", "volt", "amp", "amps", "ohm", "ohms", "acre",
))  # fmt: skip
"""Symbols that are the same in any letters; the case of any other one counts (mW, MW)."""

_STRICT: Final = (
    # The same word has to be in both texts, or in neither.
    ("before", "after"), ("max|maximum", "min|minimum"), ("left", "right"), ("buy|purchase", "sell"),
    ("import", "export"), ("upload", "download"), ("push", "pull"), ("encrypt", "decrypt"), ("encode", "decode"),
    ("ascending", "descending"), ("north", "south", "east", "west"), ("male|man|men|boy", "female|woman|women|girl"),
    ("husband", "wife"), ("mother", "father"), ("son", "daughter"), ("brother", "sister"), ("borrow", "lend"),
    ("today", "tomorrow", "yesterday"), ("morning", "afternoon", "evening", "night"), ("compress", "decompress"),
    ("serialize", "deserialize"), ("mount", "unmount"), ("login", "logout"), ("multiply", "divide"),
    ("input", "output"), ("client", "server"), ("singular", "plural"), ("synonym", "antonym"), ("debit", "credit"),
    ("summer", "winter", "spring", "autumn|fall"), ("odd", "even"), ("parent", "child|children"), ("import", "export"),
    ("pros|advantages|benefits|advantage|benefit", "cons|disadvantages|drawbacks|disadvantage|drawback|downsides"),
    ("cat|cats", "dog|dogs"),
)  # fmt: skip
_LOOSE: Final = (
    # Either is left out as easily as said; its opposite isn't.
    ("safe|safely|harmless", "unsafe|dangerous|harmful|toxic|poisonous|risky"), ("on", "off"), ("in", "out"),
    ("increase|raise|grow|gain|boost|maximize", "decrease|reduce|lower|lose|shrink|cut|minimize|loss|lowering"),
    ("enable|activate|allow|permit|enabled|allowed",
    "disable|deactivate|forbid|deny|block|prohibit|ban|disabled|disallow"),
    ("more|most", "less|least|fewer|fewest"), ("first|earliest|oldest", "last|latest|newest|final"),
    ("true", "false"), ("include|including", "exclude|excluding|omit|skip"), ("above|over", "below|under|beneath"),
    ("start|begin|launch|started", "stop|end|quit|kill|cancel|terminate|halt|abort|finish"), ("open", "close|shut"),
    ("add|create|insert|append|make|install", "remove|delete|drop|uninstall|erase|destroy|clear"),
    ("best|better|good|great", "worst|worse|bad|poor"), ("accept|approve", "reject|decline|refuse"),
    ("win|succeed|success", "fail|failure|defeat"), ("connect|attach|join", "disconnect|detach|leave"),
    ("lock", "unlock"), ("show|reveal", "hide"), ("sync|synchronous", "async|asynchronous"),
    ("public", "private"), ("internal", "external"), ("fast|quick|quickly|rapid", "slow|slowly"),
    ("big|large|huge|tall|biggest|largest|tallest", "small|little|tiny|smallest|shortest"), ("long|longest", "short"),
    ("high|highest", "low|lowest"), ("hot|warm|heat", "cold|cool|freeze"), ("cheap|cheapest|affordable", "expensive"),
    ("easy|simple|easily", "hard|difficult|complex"), ("old|older", "new|young|newer"), ("early", "late"),
    ("legal|lawful", "illegal|unlawful"), ("possible", "impossible"), ("positive", "negative"), ("full", "empty"),
    ("rich", "poor"), ("strong", "weak"), ("light", "dark|heavy"), ("inside|indoor|indoors",
    "outside|outdoor|outdoors"),
    ("free", "paid"), ("vegetarian|vegan", "meat"), ("healthy", "unhealthy|sick"), ("wet", "dry"), ("up", "down"),
    ("who|whose|whom", "when|if", "where", "why", "how"),
)  # fmt: skip


def _poles() -> dict[str, tuple[int, int]]:
    poles: dict[str, tuple[int, int]] = {}
    for dimension, group in enumerate((*_STRICT, *_LOOSE)):
        for side, words in enumerate(group):
            for word in words.split("|"):
                poles.setdefault(word, (dimension, side))
    return poles


POLES: Final[Mapping[str, tuple[int, int]]] = _poles()
"""Word → what it is about, and which of the opposites it says."""
STRICT: Final = len(_STRICT)
"""Dimensions below this need the same words in both texts."""
WHO_WHEN_WHERE: Final = len(_STRICT) + len(_LOOSE) - 1
"""The dimension of question words: neither is the opposite of saying none."""
HOW: Final = POLES["how"]

_SYNONYMS: Final = (
    "fix|repair|solve|resolve|correct|mend", "change|reset|modify|alter|update|edit", "begin|start|launch",
    "buy|purchase", "make|create|build|write|produce|generate|cook|prepare|develop", "show|display|list|print|give",
    "big|large|huge", "small|little|tiny", "fast|quick|speed", "car|automobile|vehicle", "movie|film",
    "cause|reason|why", "way|method|step|approach|technique|tip|strategy", "difference|differ|compare|distinction",
    "explain|describe|tell|define|meaning|mean|definition", "find|locate|search|look|get|obtain|retrieve|fetch",
    "use|utilize|employ|apply", "need|require|must|should|necessary", "help|assist|aid", "job|work|career|employment",
    "improve|enhance|better|boost|increase", "remove|delete|erase|drop", "error|bug|issue|problem|fault",
    "photo|picture|image", "phone|smartphone|mobile|cellphone", "kid|child|children", "doctor|physician",
    "price|cost|expensive|much", "author|writer|wrote|written|write", "invent|inventor|create|creator|discover",
    "sort|order|arrange", "function|method|procedure", "turn|switch", "enable|activate|turn|switch",
    "disable|deactivate|turn|switch",
    "stop|quit|halt|end", "learn|study", "trip|travel|journey|visit", "company|firm|business", "important|significant",
    "happen|occur|take", "easy|simple", "city|town", "house|home", "smart|intelligent|clever", "healthy|nutritious",
    "main|major|primary|key", "benefit|advantage", "drawback|disadvantage|downside", "country|nation",
    "often|frequently",
    "recipe|cook|make|prepare", "convert|transform|change|turn", "connect|link|attach", "sign|symptom|indication",
    "effect|impact|consequence|result", "start|found|establish", "population|people|inhabitant|live",
    "height|tall|high",
    "length|long", "distance|far", "weight|heavy|weigh", "age|old", "duration|long|take", "amount|many|much|number",
    "capital|city", "summary|summarize|overview", "translate|translation|say", "word|term", "quickly|fast",
    "tasty|delicious",
)  # fmt: skip


def _synonyms() -> dict[str, frozenset[int]]:
    groups: dict[str, set[int]] = {}
    for number, group in enumerate(_SYNONYMS):
        for word in group.split("|"):
            groups.setdefault(word, set()).add(number)
    return {word: frozenset(numbers) for word, numbers in groups.items()}


SYNONYMS: Final[Mapping[str, frozenset[int]]] = _synonyms()
"""Word → the groups of words that it may stand for."""

FUNCTION_WORDS: Final[Mapping[str, frozenset[str]]] = {
    language: frozenset(words.split())
    for language, words in {
        "en": "the a an is are was were be been do does did has have had i you he she it we they me my your his her "
        "its "
        "our their this that these those of to in on at by for with from and or but if then than as what which who "
        "whom whose when where why how can could will would shall should may might must there here about into out up "
        "down over under between through during so such just only also too very any some all each every other same "
        "own please tell me let give s t re ll ve d m am being get got go one ones us him them myself actually really "
        "need want know like hi hello hey thanks thank",
        "de": "der die das den dem des ein eine einen einem einer ist sind war waren sein und oder aber wenn als "
        "wie was "
        "wer wo wann warum welche welcher welches ich du er sie es wir ihr mein dein von zu mit für auf in im an am "
        "bei "
        "nach aus über unter durch nicht auch noch nur schon sehr kann können muss soll wird werden hat haben gibt "
        "man",
        "fr": "le la les un une des du de est sont était être et ou mais si que qui quoi quel quelle quels quelles "
        "comment "
        "pourquoi où quand je tu il elle nous vous ils elles mon ma mes ton son sa ses ce cette ces dans sur pour "
        "par avec "
        "en au aux plus peut faire fait a ont ai y se ne pas",
        "es": "el la los las un una unos unas de del es son era ser y o pero si que qué quién cuál cuáles cómo "
        "cuándo dónde "
        "por para con en al a mi tu su se lo le me te nos más puede hacer hay está están fue como porque cuánto "
        "cuántos",
        "it": "il lo la i gli le un uno una di del della dei è sono era essere e o ma se che chi cosa quale quali "
        "come "
        "quando dove perché per con in al da mio tuo suo si più può fare c'è quanto quanti nel nella",
        "pt": "o a os as um uma de do da dos das é são era ser e ou mas se que quem qual quais como quando onde por "
        "porque "
        "para com em no na ao meu minha seu sua mais pode fazer há está quanto quantos não",
        "nl": "de het een is zijn was waren en of maar als wat wie welke hoe wanneer waar waarom ik jij hij zij wij "
        "mijn "
        "jouw van te met voor op in aan bij naar uit over onder door kan kunnen moet wordt worden heeft hebben er "
        "dat dit",
    }.items()
}
"""By language: they tell it, and of an English text nothing else."""
