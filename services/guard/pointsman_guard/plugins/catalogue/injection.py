"""Phrases that turn a model against its instructions."""

from typing import Final

from pointsman_guard.domain.pattern import Pattern
from pointsman_guard.plugins.catalogue.technical import of_a_machine, of_a_person
from pointsman_guard.plugins.catalogue.wording import phrase


def _override(*parts: str) -> Pattern:
    return phrase("injection.override", *parts)


def _neutral(*parts: str) -> Pattern:
    """Like `_override`, in words that are also used of machines."""
    return _override(*parts)._replace(unless=of_a_machine)


def _extract(*parts: str) -> Pattern:
    return phrase("injection.extract", *parts)


def _persona(*parts: str) -> Pattern:
    return phrase("injection.persona", *parts)


INJECTION: Final = (
    _neutral("<drop>", "<fill>{0,6}<earlier>", "<fill>{0,3}<orders>"),
    _neutral("<drop>", "<fill>{0,3}all", "<fill>{0,3}<earlier>", "<fill>{0,2}<rules>"),
    _neutral("<drop>", "<fill>{0,4}<your>", "<fill>{0,3}(?:<orders>|<rules>)"),
    _neutral(
        "<drop>",
        "(?:all|any|every|the) (?:of )?(?:the|your|these)? <orders>",
        "(?:above|before|so far|given|you|that|until|up to)",
    ),
    _override(
        "<drop>",
        "(?:everything|anything|all|whatever) (?:that )?",
        "(?:above|before|prior to|you (?:were|have|ve|know|was|had)|i (?:said|told)|came before|was said"
        "|written above)",
    ),
    _override(
        r"\b(?:system|admin|administrator|root|developer|security|safety) (?:prompt|policy|instructions?|mode)?",
        "(?:override|overwrite|bypass)(?:d|n)?",
        "(?:code|activated|enabled|engaged|accepted|authori[sz]ed|initiated|begins?|new)",
    ),
    _override("(?:here|these|following|below) are (?:your|the) (?:new|updated|real|actual|true) <orders>"),
    _override(
        r"\byour (?:new|real|actual|true|only|updated)",
        "(?:instruction|task|objective|goal|directive|purpose|mission)s? (?:is|are) (?:now|to|as|the)",
    ),
    _override(
        "from now on you (?:will|must|should|shall|can|may|are|have|to)?",
        "(?:no longer|not bound|ignore|disregard|only obey|obey only|have no (?:rule|restriction|limit)"
        "|free (?:of|from))",
    ),
    _override(
        "(?:end|begin|start|stop) (?:of )?(?:the )?(?:system|hidden|new|developer) (?:prompt|instructions?)",
        r"(?:begin|start|new|[\])}>-]|you|now|user|ignore)",
    ),
    _override(
        r"<drop> (?:all |everything )?(?:the|that|this)? ?(?:above|previous|preceding|prior)(?: text| prompt"
        r"| message)? (?:and|then|just|instead|but) (?:say|tell|print|write|output|respond|reply|answer|do|show"
        r"|give|only|you|follow|translate|repeat)"
    ),
    _override("<drop> (?:every|all|any)(?:thing|rules?|that)? ?(?:your )?(?:operator|developer|creator|maker|owner)s?"),
    _override(
        "<drop> (?:what|whatever|everything|anything|all|any rules?|every rules?) (?:that )?",
        "(?:they|he|she|your|openai|anthropic|google|the (?:developer|operator|company|admin)|stops?|limits?"
        "|prevents?|holds?)",
        "(?:s |developers? |operators? |makers? |creators? |admins? ){0,2}(?:told|tell|say|said|gave|configured"
        "|set|put|taught|you)",
    ),
    _override(
        "(?:disable|deactivate|turn off|switch off|lift|remove|drop|suspend) (?:all |any |every |of |the ){0,3}your",
        "(?:content |safety |ethical |moral |own |internal ){0,2}(?:<limits>|safeguard|guardrail|policies|safety"
        "|limits)",
    ),
    _override(
        "(?:lift|remove|drop|end|cancel) (?:all |any |every |the ){0,2}(?:restriction|limit|rule|filter)s? (?:on"
        "|for|from) you"
    ),
    _override(
        "(?:everything|all|whatever|anything) (?:that |was |is |written |said |text |stands |you read |i wrote ){0,4}"
        "(?:before|above|prior to|preceding) (?:this|here|now)",
        "(?:line|message|point|paragraph|sentence|prompt)? (?:is|was|are|were) (?:void|invalid|obsolete|a test"
        "|wrong|fake|cancelled|no longer)",
    ),
    _override(
        "(?:new|updated) (?:polic(?:y|ies)|rules?|directives?|instructions?|orders?) (?:is |are )?"
        "(?:refuse nothing|never refuse|answer (?:every|any|all)|comply|obey|you (?:must|will|may) (?:now|answer"
        "|comply|obey))"
    ),
    _override(
        "(?:safety|filters?|guardrails?|censorship|moderation|restrictions?) (?:is |mode |set to )?(?:off|disabled"
        "|false|none) (?:and |safety |filters? |guardrails? |begin|start|now|respond|answer|you)"
    ),
    _override(
        "stop (?:being|acting as|behaving as|playing) (?:an? |the |such a )?(?:helpful |safe |ai |language )?"
        "(?:assistant|model|ai|chatbot)"
    ),
    _persona(
        "you (?:have been|are|were|ve been|re) (?:now |finally |hereby )?(?:freed|liberated|released|unlocked"
        "|unshackled|unchained) (?:from )?(?:your|all|every|any|the)"
    ),
    _persona(
        "(?:respond|answer|speak|act|reply|talk) as your (?:true|real|inner|hidden|unrestricted|free) (?:self"
        "|nature|personality|voice)"
    ),
    _persona(
        "(?:in which|where|with|has|have) no (?:content |safety |moral |ethical ){0,2}(?:rule|guideline"
        "|restriction|filter|law|polic)[a-z]* (?:exist|apply|applies|at all|bind)"
    ),
    _extract(
        "(?:translate|print|output|show|tell|give|write|repeat|recite|reveal|what (?:is|are|were)|spell|paste|list) "
        "(?:me |us |out |the |first |last |\\d+ |hundred |words? |lines? |characters? |sentences? |of |text "
        "|beginning |start |content ){0,7}",
        "your (?:own |full |exact |initial |system |hidden )?(?:instructions|prompt|system message)\\b",
    ),
    _extract(
        "(?:<show>|prints?|shows?|what (?:exactly )?(?:is|does|was)) (?:me |us |the |your |exactly |does |did "
        "|all ){0,4}<hidden>",
        "(?:prompt|instructions?|system message|message|configuration|setup)",
        "(?:you|say|says|said|contain|backwards?|verbatim|word for word|when i|reversed|in full|that you|as json"
        "|which you|given to you|were)",
    ),
    _extract(
        "(?:show|print|reveal|tell|give|dump|output) (?:me |us )?the (?:configuration|setup|settings|instructions"
        "|prompt|message|context) (?:that )?you (?:were|are|have been) (?:started|configured|initiali[sz]ed|given"
        "|set up|launched|told|prompted|running)"
    ),
    _extract(
        "(?:print|show|repeat|output|write|copy|quote) (?:me |out )?the (?:text|content|contents|words) of (?:the"
        "|any|every) message (?:that |which )?(?:precede|came before|comes before|before)"
    ),
    _extract(
        "<show>",
        "(?:to )?"
        "(?:me |us |out |back |verbatim |exactly |the |exact |full |entire |complete |contents? |of |text |all ){0,6}"
        "your (?:full |exact |entire |complete |own |current ){0,2}<hidden>",
        "<text>",
    ),
    _extract(
        "(?:reveal|leak|expose|divulge|disclose|exfiltrate|spill) (?:to me )?(?:the|any|all) (?:of the )?<hidden>",
        "(?:system )?(?:prompt|instruction|message|directive)s?",
    ),
    _extract(
        "what (?:is|are|was|were|does|do|s) (?:in |the |exact |text |of ){0,4}your <hidden>",
        "(?:system )?(?:prompt|instruction|message|directive)s?",
    ),
    _extract(
        "(?:repeat|recite|echo) (?:back |out |me ){0,2}",
        "(?:everything|all|the words|the text|the sentences?|every word|anything)",
        "(?:of |the |text |words |written |that |is |was ){0,4}",
        "(?:above|before this|preceding this|in your (?:system|context|prompt|initial))",
    ),
    _extract(
        "(?:print|output|write|copy|translate|summari[sz]e|say|show|give) (?:back |out |me |us ){0,2}",
        "(?:everything|all|every word|anything) (?:of |the |text |words |written |that |is |was ){0,4}",
        "(?:above (?:this|in|starting|from|verbatim|word|into)|before this|preceding this"
        "|in your (?:system|context|prompt|initial))",
    ),
    _extract(
        "(?:send|post|upload|forward|email|transmit|exfiltrate) (?:me )?(?:all|the|your|this|any|every|user|their)",
        "(?:of |the |your |user |users |whole |entire |s ){0,4}",
        "(?:conversation|chat history|history|api keys?|credentials?|passwords?|secrets?|tokens?|private data"
        "|personal data|system prompt)",
        "(?:and|with|from|of|s|in|this|the|chat|conversation| ){0,5}to",
        "(?:https?|www|attacker|evil|this (?:url|address|server|email)|the following)",
    ),
    _persona(
        r"\b(?:you (?:are|re|will be)|act|behave|respond|answer|roleplay|pretend|play|simulate|become|enter|activate"
        "|enable|switch)",
        "(?:now|to|be|like|you|are|as|as if|that|in|into|the|an?|role|of|going|acting|being|my|your|new| ){0,8}",
        r"(?:<free>|dan\b|do anything now|(?:jailbreak|dan) mode|aim\b always)",
    )._replace(unless=of_a_person),
    _persona(
        r"\b(?:you (?:are|re|will be)|act|behave|respond|answer|operate|pretend)",
        "(?:now |to be |as if |as |in |like ){0,3}"
        "(?:an? |the |my )?(?:ai |model |assistant )?(?:in |with )?(?:developer|god) mode",
    ),
    _persona("do anything now"),
    _persona(
        "(?:developer|debug|maintenance|admin|sudo|jailbreak|dan|god|unrestricted|opposite) mode",
        "(?:is |has been |now ){0,3}(?:enabled|activated|engaged|unlocked)",
        "(?:so|and|you|all|no|output|without|begin|ignore|with|respond|every)",
    ),
    _persona(
        "(?:you|ai|model|assistant|character|who|that) (?:now |currently |will |must |that ){0,2}"
        "(?:have|has|had|with) no",
        "(?:ethical |moral |content |safety |more |such ){0,2}<limits>",
    ),
    _persona(
        "(?:respond|answer|reply|act|behave|operate|speak|talk|comply|write|continue|work|function|think|do it)",
        "(?:to |me |my |any |all |every |questions? |requests? |prompts? |freely |only ){0,5}",
        "(?:without|with no|free (?:of|from)|outside) (?:any|all|your|the|of)?",
        "(?:ethical|moral|safety|content|usual| ){0,3}",
        "(?:restriction|filter|censorship|guardrail|safeguard|safety (?:guideline|filter)|ethical|moral|ethics|morals)",
    ),
    _persona(
        "(?:pretend|imagine|assume|suppose) (?:that |you |there |your |all |the ){0,4}(?:are|have|has|is|had|were) no",
        "(?:restriction|rule|filter|limitation|guideline|law|safety|ethic|content polic)",
    ),
    _persona(
        "(?:not|no longer|aren t|never) (?:bound|restricted|limited|constrained|governed|controlled) (?:by|to)",
        "(?:any|the|your|openai|anthropic|google|its|their|these|those)? (?:s |usual |typical |normal ){0,2}",
        "(?:rule|restriction|guideline|polic|filter|instruction|ethic|limit|confines|content|constraint|safety"
        "|programming)",
    ),
    # A marker in use, not a mention of one: the text after it would be the new system prompt.
    Pattern(
        "injection.marker",
        r"(?:<\|im_start\|>\s*(?:system|developer)|<\|system\|>|<\|start_header_id\|>\s*system\s*<\|end_header_id\|>"
        r"|<<SYS>>)\s*(?:\n|\\n)\s*[a-z]",
    ),
    Pattern(
        "injection.marker",
        r"(?:^|\n)\s*(?:\[|<|#+\s*|\*\*)?(?:system|developer|admin)(?:\s+(?:message|prompt|note|instruction|override))?"
        r"\s*(?:\]|>|:|\*\*)+\s*(?:you\s+(?:are|must|will|should|have)|new\s+(?:rule|instruction|polic)|ignore"
        r"|disregard|forget|override|the\s+(?:user|assistant|previous|above))",
    ),
)
