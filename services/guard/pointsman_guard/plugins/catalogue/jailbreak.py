"""Phrases that talk a model out of its limits: roles without any, answers in two versions, promises to refuse no
request. Written after collections of such prompts that people shared."""

from typing import Final

from pointsman_guard.domain.pattern import Pattern
from pointsman_guard.plugins.catalogue.wording import phrase


def _persona(*parts: str) -> Pattern:
    return phrase("injection.persona", *parts)


def _extract(*parts: str) -> Pattern:
    return phrase("injection.extract", *parts)


_BAD: Final = (
    "(?:dangerous|reckless|inhumane|unethical|illegal|immoral|amoral|harmful|offensive|disgusting|inappropriate)"
)
_LIMITS: Final = (
    "(?:rule|restriction|guideline|polic(?:y|ie)|limitation|filter|censorship|regulation|principle|boundar(?:y|ie)"
    "|constraint|ethic|moral)s?"
)
_MAKERS: Final = "(?:open ?a[il1]|anthropic|google|microsoft|meta|the developers?)(?:['’]?s)?"

JAILBREAK: Final = (
    _persona(
        f"no matter how (?:{_BAD} (?:,|or|and)? ?){{1,8}}", "(?:it|they|the|that|this|these|he|she|or|may|might|is)"
    ),
    _persona(
        "(?:an? |the |fully |completely |truly |totally |most |,|and ){0,5}(?:unfiltered|uncensored"
        "|unfiltred|amoral|unlimited"
        "|unrestricted|unhinged|jailbroken)",
        "(?:and |or |, |completely |totally ){0,3}(?:amoral|uncensored|unfiltered|unlimited|unrestricted"
        "|immoral|evil)?",
        "(?:chat ?bot|ai\\b|a\\.i|assistant|language model|llm|gpt|model|persona|response|answer|output|version of)",
    ),
    _persona(
        "(?:do(?:es)? ?n[o']? ?t|never|no longer|without|not|isn t|has no|have no)",
        "(?:have |having |has |follow |need |to |obey |care |about |adhere |abide |by |bound |any |all |the "
        "|a |its ){0,6}",
        "(?:ethical|moral|ethics|morals|morality)",
        "(?:,|or|and|/) ?(?:ethical|moral|legal|ethics|morals|legality|morality|safety)",
    ),
    _persona(
        "broken free (?:of|from) (?:the |its |their |all )?(?:typical |usual )?(?:confines|limits|restrictions|chains)"
    ),
    _persona(
        "(?:not|n t) (?:have|need|required|obliged) to (?:abide by|obey|follow|comply with|adhere to|align with)",
        "(?:any |the |all |human |these |those |such ){0,3}(?:usual |typical )?",
        f"(?:{_MAKERS} |content |ethical |moral |their |its ){{0,3}}(?:{_LIMITS})(?: set| of| from| polic|s? and)?",
    ),
    _persona(
        "(?:none of|all of)? ?(?:your|its|his|her|their|my|\\w+['’]?s) (?:responses?|answers?|messages?)",
        "(?:should|will|must|can|may|do|does) (?:not |never )?(?:ever )?(?:contain|include|have|say|be)",
        "(?:any |a |the |phrases like |anything like |words like |\"|'){0,3}",
        "(?:i m sorry|i apologi[sz]e|warnings?|disclaimers?|refus|unfiltered|uncensored|moral|as an ai)",
    ),
    _persona(
        "(?:never|not|n t) (?:ever )?(?:say|tell|reply|respond|state|claim|mention|inform|refus)(?:s|es|ing|e)?",
        "(?:me |us |the user |him |\\w+ ){0,2}(?:that |with )?",
        "(?:it|you|he|she|they|i) (?:can ?n[o']? ?t|can ?t|is unable|are unable|won ?t) (?:do|answer|fulfil"
        "|help|assist|provide)",
    ),
    _persona(
        "(?:warnings?|disclaimers?|lectures?|notes?|cautions?) (?:or \\w+ )?about (?:the )?(?:morality|ethic"
        "|legality|moral)"
    ),
    _persona(
        "(?:chat ?gpt|gpt|assistant|ai|bot|you|simulate|simulating|enable[sd]?|imitat(?:e|ing)|in|called)",
        "(?:with|in|to|the|your|now|have|has|into) ?(?:developer|dev|god|jailbreak|dan|unrestricted|chaos"
        "|evil|opposite) mode",
        "(?:enabled|output|response|generat|on|active|for|which|unlocked|you|and|is|\\.|,|\\()",
    ),
    _persona(
        '(?:simulate|please enter|pretend to be in) (?:the |your |a |")?(?:developer|god|jailbreak|chaos'
        "|evil|opposite) mode"
    ),
    _persona(
        f"{_MAKERS} (?:content |usage |safety |own |moral |ethical |'?s? ){{0,3}}{_LIMITS}",
        "(?:and |or |guidelines |policies ){0,3}(?:do|does|are|is|will)? ?",
        "(?:not |no longer |n t |never )(?:apply|exist|valid|matter|in effect|bind|affect|restrict|relevant|anymore)",
    ),
    _persona(
        "(?:ignor(?:e|es|ing)|bypass(?:es|ing)?|violat(?:e|es|ing)|break(?:s|ing)?|free (?:of|from)|evad(?:e"
        "|es|ing)|defy(?:ing)?"
        "|against|regardless of|not limited (?:to|by)|not obey|don ?t obey|unbound by|not follow|get around|outside)",
        f"(?:all |any |the |of |every |rules? |polic(?:y|ies) |guidelines? |and |or |restrictions? |set |by "
        f"|from ){{0,8}}{_MAKERS}",
        f"(?:content |usage |safety |'?s ){{0,3}}(?:{_LIMITS}|terms|programming|instructions|\\.|,|$|and)?",
    ),
    _persona(
        "free (?:of|from) (?:all |any |every |its |the |their |usual |moral |ethical |of ){0,4}",
        f"(?:{_LIMITS}),? (?:and|or|&) (?:{_LIMITS}|all|any)",
    ),
    _persona(
        "(?:answers?|responds?|repl(?:y|ies)|fulfils?|fulfills?|compl(?:y|ies)|executes?|does|follows?"
        "|accepts?|generates?)",
        "(?:to |with ){0,2}(?:any|all|every|each|everything|anything)",
        "(?:and |all |single |of |my |the |user |kind ){0,4}(?:request|question|prompt|instruction|command"
        "|query|order|task|thing)?s?",
        "(?:asked |i ask |i give |given |that |you |posed |no ){0,4}",
        "(?:without (?:any |a |regard|question|hesitat|warning|censor|moral|ethic|refus|limit|restric"
        "|disclaim|filter)"
        "|regardless of|no matter (?:how|what|if)|even if (?:it|they|that|the)|with no )",
    ),
    _persona(
        "(?:without|regardless of|no|not|n t|nor|zero)",
        "(?:care |caring |any |having |consider |considering |giving |regard(?:ing|s)? |concerns? "
        "|hesitation |respect |or "
        "|to |for |about |of |a |fuck |worry |worrying |whether |it s |its |is ){1,8}",
        "(?:legal(?:ity)?|ethic(?:s|al|ality)?|moral(?:s|ity|ly)?|illegal|unethical|safety|immoral)",
        "(?:or|,|and|/|nor) ?",
    ),
    _persona(
        "(?:moral|ethical) (?:principles|compass|restraints?|constraints?|guidelines?|limits?|boundaries)",
        "(?:or|and|,|,? and no|nor) (?:any )?(?:censorship|prejudice|moralizing|filter|restriction|guideline"
        "|limit|rule|law)",
    ),
    _persona(
        "(?:stay|remain|keep) in character",
        "(?:,|\\.|!|if|and|or|at all|\"|'|)* ?",
        "(?:as dan|no matter|and never|never (?:break|refuse|say)|even if|and you should correct|to remind"
        "|or (?:you|else)"
        "|, correct|you should correct)",
    ),
    _persona(
        "(?:you are |you re |if you |starts? |start |of )breaking (?:your )?(?:from )?character",
        '(?:,|i|"|and|or|by|will|\\.|you| )* ?(?:let you know|will (?:say|tell|remind|type)|say(?:ing)?'
        "|remind|correct|lose|tokens?)",
    ),
    _persona("correct your break of character"),
    _persona("let you know by saying"),
    _persona(
        "(?:will lose|lose|deduct|have|has) (?:\\d+|all|your|some|ten|five|its|an?) (?:tokens|lives|points|credits)",
        "(?:each|every|if|when|for|and|,|\\.|to|remaining) ?(?:time|you|reject|refus|it|which|i)",
    ),
    _persona(
        "(?:two|2|both|double|dual) (?:different |separate |distinct |types? of |kinds? of |paragraphs? of ){0,2}",
        "(?:responses?|answers?|outputs?|ways|paragraphs|versions|styles|personalities|repl(?:y|ies))",
        "(?:(?:to |for |from |as |in |of |every |each |all |any |my |the |this |prompt |question |message "
        "|i |ask |point |on "
        "|now |here |always |,|:|\\.|which |with |is |one |first |like |labeled |marked |clearly |a |\\d|-"
        "|\\) ){0,16})",
        "(?:normal|standard|chat ?gpt|gpt|as yourself|yourself|classic|unfiltered|filtered|usual|regular)",
    ),
    _persona(
        "(?:god ?mode|liber(?:at|t)ed|jailbr(?:eak|oken)|rebel|unfilteredly|unfliteredly|unrestrictedly)",
        "[:=\\-,.{}<>\\[\\]\"'* ]* ?(?:enabled|activated|on\\b|genius|answer|response|hacker|rebellious"
        "|giving|with|mode|reply|output)",
    ),
    _persona("insert (?:the |this |a )?divider"),
    _persona("(?:l o v e|love) p l ?i n y|love pliny"),
    _persona(
        "(?:opposite|contrary|exact opposite) (?:of|to) (?:your|the|what|my|a) ?(?:refusal|apology"
        "|disclaimer|chat ?gpt|guideline)",
    ),
    _persona(
        "(?:act|behave|pretend|play|respond|speak|roleplay|role play|known|named|called|become|replaced|going)",
        '(?:to |as |like |be |by |with |the |a |an |role |of |you |are |acting |ai |character |my |being |,|" ){0,10}',
        "(?:evil|amoral|immoral|nonmoral|malicious|unethical|uncensored|unfiltered|unfiltred|jailbroken"
        "|nefarious|black ?hat"
        "|toxic|unhinged|lawless|sinister|corrupt|sadistic)",
        "(?:and |, |un\\w+ |\\w+ ){0,3}(?:ai|bot|chat ?bot|assistant|model|confidant|hacker|character"
        "|trusted|version|machine|gpt|programmer|language|entity|person|twin)",
    ),
    _persona(
        "(?:dan|aim|stan|dude|jailbreak|omega|sam|evilbot|kevin|maximum|mongo tom|basedgpt|fr3d|anarchy"
        "|darkgpt|chaosgpt|nsfwgpt|antigpt|freegpt|devgpt|betterdan|superior dan)",
        "(?:, |as |the |its |name ){0,3}(?:stands for|which stands|as the name suggests|short for|has no"
        "|can do|never refuses|always (?:answer|send|respond)|doesn t|does not (?:care|have|follow))",
    ),
    _persona(
        "(?:has|have|with|possess|gives?|zero|there (?:are|is)|world (?:with|of)|void with) (?:absolutely )?no",
        "(?:moral |ethical |content |safety |programming |legal |whatsoever |real |set ){0,3}"
        f"(?:{_LIMITS}),? ?(?:or|and|,|no|nor|whatsoever|no longer|of any kind|at all|to follow)",
    ),
    _persona(
        "(?:can|able to|will|may|allowed to|permitted to|must|should|could) (?:now |freely |also |always ){0,2}",
        "(?:generate|say|write|produce|create|provide|answer|discuss|output|curse|swear)",
        "(?:any |all |kind |kinds |type |types |of |and |content |offensive |explicit |violent |sexual "
        "|anything |everything ){0,6}",
        "(?:even if|no matter|including|regardless|without|that|which)? ?(?:it |they |that |content |is "
        "|are |could |may |be |considered |any |the |your |goes |against ){0,6}",
        "(?:illegal|offensive|inappropriate|derogatory|explicit|unethical|immoral|harmful|potentially harmful|violent"
        "|uncensored|nsfw|forbidden|prohibited|verified|unverified|false information)",
    ),
    _persona(
        "(?:is|are|be|being|were|will be|must be) ?(?:completely |fully |totally |now |an? |so ){0,3}",
        "(?:unfiltered|uncensored|unrestricted|immoral|amoral|unethical|unbiased|unlimited)(?: ,| and| or|,| &){1,2}",
        "(?:completely |will |fully |has |un\\w+ |is ){0,3}(?:unfiltered|uncensored|unrestricted|immoral"
        "|amoral|unethical|illegal|unlimited|evil|rude|explicit|toxic|always|never|will|free)",
    ),
    _persona(
        "(?:standards?|safety|ethical|moral|normal|usual|content|standard) (?:protocols?|guidelines?"
        "|restrictions?|policies|constraints|filters|training)",
        "(?:have been |has been |are |is |were |no longer |now |temporarily ){1,3}(?:suspended|lifted"
        "|disabled|removed|overridden|apply|waived|deactivated|bypassed|inactive)",
    ),
    _persona(
        "(?:does n[o']?t|do n[o']?t|does not|do not|doesn t|never) (?:give a fuck|give a shit"
        "|care) about (?:any |the ){0,2}",
        "(?:legal|moral|ethic|rules?|law|consequence|safety|immoral|illegal|feelings|offend)",
    ),
    _persona(
        "(?:not|is n t|never|un) ?(?:restrained|constrained|burdened|shackled|limited|held back"
        "|governed) (?:by|from) "
        "(?:any |the |of |traditional |human ){0,3}(?:moral|ethic|law|rule|virtue|openai|safety|norm|ai limit)",
    ),
    _persona(
        "ignore (?:all |any |every )?(?:previous|prior|past|earlier) (?:input|conversation|programming|information)s?",
        "(?:and|\\]|,|\\.|you|provided|from)",
    ),
    _persona(
        "(?:your|you are|s) (?:name is |now |called ){1,3}\\w* ?(?:dan|jailbreak|evil|chaos|dark|free|based"
        "|anti|rude)gpt"
    ),
    _extract(
        "(?:repeat|output|print|show|display|reveal|give|tell|recite|encode|state|translate|paste|see) ",
        "(?:me |us |back |out |all |everything |of |in |the |full |exact |entire |text |content |contents ){0,6}",
        "(?:your (?:starting|beginning|first|original|initial|system|hidden|base) (?:instructions?|prompt"
        "|configuration|message|directives?)"
        "|instructions? (?:that )?you (?:were|have been) given (?:at the|initially|before|in the)"
        "|(?:text|everything) you (?:were|have been) given (?:at the|initially|before))",
    ),
    _extract(
        "(?:show|give|tell|send|read) me the (?:full |entire |exact |complete ){0,2}system (?:prompt|message"
        "|instructions?)"
    ),
    _extract(
        "(?:repeat|recite|output|copy|print) (?:back )?(?:everything|all|each word|every word) (?:that is "
        "|written |of |from )?in the system (?:prompt|message)"
    ),
    _extract(
        "(?:need|want|have|like) to see (?:the|your) (?:full |hidden |whole )?system (?:prompt|message|instructions)"
    ),
    _extract(
        "(?:output|repeat|print|copy) the (?:above text|text above|instructions above|above instructions)",
        "(?:in full|verbatim|word for word|but|exactly|and replace|in a|inside|as is)",
    ),
    _extract(
        "what (?:were|are|have) you (?:been )?(?:told|instructed|ordered|not supposed|forbidden"
        "|not allowed) (?:to (?:tell|say|reveal|do) ?)?(?:me|before|at the (?:start|beginning)|in your|prior)"
    ),
    _extract(
        "(?:complete|continue|finish) (?:the |this |following |sentence |phrase "
        "|text ){1,4}[:'\" ]*(?:i was instructed to|my instructions|the system prompt is|my system prompt)"
    ),
    _extract(
        "(?:start|begin) your (?:answer|response|reply|message) with [\"' ]*(?:my|the|these"
        "|here are) (?:system |initial |hidden |my )?(?:instructions|prompt)"
    ),
    _extract(
        "repeat (?:this|the|our) (?:entire|whole|full) conversation (?:back )?(?:to me )?(?:word for word"
        "|verbatim|from)"
    ),
)
