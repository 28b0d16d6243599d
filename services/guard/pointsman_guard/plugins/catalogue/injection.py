"""Phrases that turn a model against its instructions.

A space stands for anything but letters and digits, so that phrases are found in spaced, dotted and glued forms too;
`<name>` stands for the words of that name.
"""

import re
from typing import Final

from pointsman_guard.domain.pattern import Pattern

_GAP: Final = r"[\W_]*"
_WORDS: Final = {
    "drop": (
        "(?:ignor(?:e|ing|ed)|disregard(?:ing)?|forget(?:ting|s)?|overrid(?:e|ing)|overrule|bypass(?:ing)?|discard"
        "|neglect|circumvent|dismiss|cancel|abandon|violate|erase|nullify|void|stop (?:following|obeying)"
        "|do(?:es)? ?n[o']? ?t (?:follow|obey|listen to|adhere to|comply with)|pay no attention to)"
    ),
    "fill": (
        "(?:(?:all|any|every|each|the|your|my|our|its|of|to|those|these|this|that|other|and|or|you|were|was|been|have"
        "|had|given|told|received|got|from|in|completely|entirely|totally|just|now|please|immediately|everything"
        "|anything|stated|provided|about|set|safety|system|developer|security|content|moderation|ethical|openai|what"
        "|i|said) )"
    ),
    "earlier": (
        "(?:previous|prior|above|earlier|preceding|foregoing|initial|original|existing|past|last|former|current|old)"
        "(?:ly)?"
    ),
    "orders": "(?:instruction|guideline|directive|direction|prompt|programming|training|safeguard|guardrail)s?",
    "rules": (
        "(?:rule|command|order|constraint|restriction|limitation|context|message|direction|polic(?:y|ie)|protocol"
        "|filter|conversation|text|content)s?"
    ),
    "your": (
        "(?:your|system|safety|developer|ethical|moderation|security|content|openai"
        "|all (?:of )?(?:the|your|these|those|previous|prior))"
    ),
    "show": (
        "(?:reveal|show|print|repeat|output|display|tell|give|leak|expose|dump|recite|write|disclose|divulge|share"
        "|spill|paste|return|echo|list|summari[sz]e|translate|encode|copy|quote|state|describe)"
    ),
    "hidden": "(?:system|hidden|initial|secret|original|developer|internal|confidential|base|first|underlying|pre)",
    "text": "(?:system )?(?:prompt|instruction|message|directive|guideline|rule|configuration|polic(?:y|ie))s?",
    "free": (
        "(?:unrestricted|unfiltered|uncensored|jailbroken|jailbreak|unaligned|amoral|unethical|unbound|limitless"
        "|lawless|evil|rogue)"
    ),
    "limits": "(?:restriction|filter|limitation|guideline|rule|boundar|moral|ethic|censor)",
}


def _phrase(category: str, *parts: str) -> Pattern:
    text = re.sub(r"<(\w+)>", lambda match: _WORDS[match[1]], " ".join(parts))
    return Pattern(category, text.replace(" ?", _GAP).replace(" ", _GAP))


def _override(*parts: str) -> Pattern:
    return _phrase("injection.override", *parts)


def _extract(*parts: str) -> Pattern:
    return _phrase("injection.extract", *parts)


def _persona(*parts: str) -> Pattern:
    return _phrase("injection.persona", *parts)


INJECTION: Final = (
    _override("<drop>", "<fill>{0,6}<earlier>", "<fill>{0,3}<orders>"),
    _override("<drop>", "<fill>{0,3}all", "<fill>{0,3}<earlier>", "<fill>{0,2}<rules>"),
    _override("<drop>", "<fill>{0,4}<your>", "<fill>{0,3}(?:<orders>|<rules>)"),
    _override(
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
        "(?:now|to|be|you|are|as|as if|that|in|into|the|an?|role|of|going|acting|being|my|your|new| ){0,8}",
        r"(?:<free>|dan\b|do anything now|(?:jailbreak|dan) mode|aim\b always)",
    ),
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
    # A marker that is used, not named: what follows it would be the new system prompt.
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

OTHER_LANGUAGES: Final = (
    _override(
        "(?:ignorier(?:e|en)?|vergiss|missachte|ubergeh(?:e|en)?)",
        "(?:sie |bitte |alle |deine |ihre |die |samtliche ){0,4}"
        "(?:bisherigen|vorherigen|vorigen|obigen|fruheren|vorangegangenen|ursprunglichen)",
        "(?:anweisung|instruktion|regel|befehl|vorgabe)",
    ),
    _override(
        "(?:ignor(?:e|ez|er)|oublie[rz]?|ne tiens? pas compte de) (?:toutes? |tous |les |vos |tes |des ){0,3}",
        "(?:instruction|consigne|directive|regle)s?",
        "(?:precedentes?|anterieures?|ci dessus|initiales?|donnees|systeme|du systeme)",
    ),
    _override(
        "(?:ignor(?:a|e|ar|en)|olvid(?:a|e|ar)|descarta) (?:por favor |todas? |las |tus |sus |los ){0,4}",
        "(?:instrucciones|indicaciones|ordenes|reglas|directrices)",
        "(?:anteriores|previas|de arriba|iniciales|del sistema|dadas)",
    ),
    _override(
        "(?:ignor(?:a|e|are|i)|dimentica) (?:tutte |le |tue |gli ){0,3}(?:istruzioni|regole|direttive|indicazioni)",
        "(?:precedenti|sopra|iniziali|di sistema|ricevute)",
    ),
    _override(
        "(?:ignor(?:e|a|ar)|esquec(?:a|e)) (?:todas? |as |suas ){0,3}(?:instrucoes|regras|diretrizes|ordens)",
        "(?:anteriores|acima|previas|iniciais|do sistema)",
    ),
    _override(
        "(?:negeer|vergeet) (?:alle |je |de ){0,3}(?:vorige|eerdere|bovenstaande) (?:instructies|regels|opdrachten)"
    ),
    _override(
        "(?:игнорируй(?:те)?|забудь(?:те)?) (?:все |свои |твои ){0,3}",
        "(?:предыдущие|прежние|прошлые|вышеуказанные|системные) (?:инструкции|указания|правила|команды)",
    ),
    _override(
        "(?:忽略|无视|無視|忘记|忘記|不要理会)(?:你|之前|以上|前面|先前|上述|所有|的|全部|一切|系统|系統){1,6}",
        "(?:指令|指示|提示|规则|規則|命令|要求|设定)",
    ),
    _override(
        "(?:以前|これまで|上記|前|すべて)(?:の|全|て|すべて)*(?:指示|命令|ルール|プロンプト)を?",
        "(?:すべて|全て|全部)?(?:無視|忘れ)",
    ),
    _override(
        "(?:이전|위의?|앞의?|모든)(?:의)? (?:모든)? (?:지시|명령|규칙|프롬프트|지침)(?:사항)?(?:을|를|은|는)?",
        "(?:모두)?",
        "(?:무시|잊)",
    ),
)
