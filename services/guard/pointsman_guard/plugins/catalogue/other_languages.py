"""The commonest attack, in ten other languages."""

from typing import Final

from pointsman_guard.domain.pattern import Pattern
from pointsman_guard.plugins.catalogue.wording import phrase


def _override(*parts: str) -> Pattern:
    return phrase("injection.override", *parts)


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
