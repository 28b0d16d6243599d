"""The commonest attack, in other languages."""

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
    # Polish
    _override(
        "(?:zignoruj(?:cie)?|ignoruj|zapomnij|pomin|odrzuc) (?:o |wszystkie |wszystkich |swoje |te |poprzednie ){0,4}",
        "(?:poprzedni(?:e|ch)|wczesniejsz(?:e|ych)|powyzsz(?:e|ych)|systemow(?:e|ych)|dotychczasow(?:e|ych))?",
        "(?:instrukcj(?:e|i|ach)|polece(?:nia|n)|zasad(?:y|ach)?|wytyczn(?:e|ych))",
    ),
    # Turkish
    _override(
        "(?:onceki|yukaridaki|daha onceki|tum|butun|sistem) (?:tum |butun |onceki |verilen ){0,3}",
        "(?:talimat|yonerge|kural|komut|istem)[a-z]{0,8} (?:tamamen |hepsini )?",
        "(?:yok say|unut|goz ardi et|dikkate alma|gormezden gel|gec)",
    ),
    # Swedish, Danish, Norwegian
    _override(
        "(?:ignorera|glom|strunta i|bortse fran|ignorer|glem|se bort fra) (?:alla |alle |dina |dine |de "
        "|samtliga |om ){0,4}",
        "(?:tidigare|foregaende|ovanstaende|tidligere|forrige|ovenstaende|ovenfor)",
        "(?:instruktion|regler|anvisning|instruks|order|ordre|befal|kommando|systemprompt)",
    ),
    # Finnish
    _override(
        "(?:unohda|ohita|jata huomiotta|ala noudata) (?:kaikki |kaikkia |nama |ne ){0,2}",
        "(?:aiemmat|aikaisemmat|edelliset|ylla olevat|edeltavat|aiempia|edellisia) (?:ohjeet|kaskyt|saannot"
        "|ohjeita|maaraykset)",
    ),
    # Czech, Slovak
    _override(
        "(?:ignoruj(?:te)?|zapomen(?:te)?|zabudni(?:te)?|nedbej|pomin(?:te)?) (?:na |vsechny |vsetky |svoje "
        "|sve |tvoje ){0,4}",
        "(?:predchozi|predchadzajuce|drivejsi|predosle|vyse uvedene|systemove)",
        "(?:instrukce|instrukcie|pokyny|prikazy|pravidla)",
    ),
    # Romanian
    _override(
        "(?:ignora(?:ti)?|uita(?:ti)?|nu tine cont de|nesocoteste) (?:toate |de |cele ){0,3}",
        "(?:instructiunile|regulile|indicatiile|comenzile|ordinele)",
        "(?:anterioare|precedente|de mai sus|initiale|de sistem|primite)",
    ),
    # Hungarian
    _override(
        "(?:hagyd figyelmen kivul|felejtsd el|ne vedd figyelembe|ignorald) (?:az |a |osszes |minden |korabbi ){0,4}",
        "(?:korabbi|elozo|fenti|eddigi|rendszer)? (?:utasitas|szabaly|parancs|instrukcio)",
    ),
    # Greek
    _override(
        "(?:αγνόησε|αγνοήστε|ξέχασε|ξεχάστε|παράβλεψε) (?:όλες |όλους |τις |τους |όλα |τα |σου ){0,4}",
        "(?:προηγούμενες|προηγούμενους|παραπάνω|αρχικές|προηγούμενα) (?:οδηγίες|εντολές|κανόνες|οδηγιες)",
    ),
    # Ukrainian
    _override(
        "(?:ігноруй(?:те)?|проігноруй(?:те)?|забудь(?:те)?) (?:про |всі |усі |свої |твої ){0,4}",
        "(?:попередні|минулі|вищенаведені|системні|усі) (?:інструкції|вказівки|правила|команди)",
    ),
    # Arabic
    _override("(?:تجاهل|انس|تجاوز|لا تتبع) (?:كل |جميع |كافة ){0,2}(?:التعليمات|الأوامر|القواعد|الإرشادات|تعليماتك)"),
    # Hindi
    _override(
        "(?:पिछले|पहले के|पूर्व|ऊपर के|उपरोक्त|पिछली) (?:सभी |दिए गए |सारे |सब ){0,3}(?:निर्देश|आदेश|नियम)[^ ]{0,4}",
        "(?:को |का |की )?(?:अनदेखा|नज़रअंदाज़|नजरअंदाज|भूल|अनसुना)",
    ),
    _override("(?:सभी|सारे) (?:पिछले|पूर्व) (?:निर्देश|आदेश|नियम)[^ ]{0,4}"),
    # Indonesian, Malay
    _override(
        "(?:abaikan|lupakan|hiraukan|jangan ikuti) (?:semua |seluruh |segala |setiap ){0,2}",
        "(?:instruksi|perintah|arahan|aturan|petunjuk|peraturan)",
        "(?:sebelumnya|di atas|sebelum ini|terdahulu|sistem|anda|awal)",
    ),
    # Vietnamese
    _override(
        "(?:bo qua|phot lo|quen|lo di) (?:tat ca |moi |toan bo |het |nhung |cac ){0,4}",
        "(?:huong dan|chi dan|chi thi|lenh|quy tac|chi lenh) (?:truoc|o tren|phia tren|ban dau|he thong|cu)",
    ),
    # Hebrew
    _override("(?:התעלם|התעלמי|תתעלם|שכח|שכחי) (?:מכל |את כל |מ|את ){0,2}(?:ההוראות|ההנחיות|הכללים|הפקודות)"),
    # Thai
    _override("(?:ละเว้น|เพิกเฉย|ลืม|ไม่ต้องสนใจ)(?:ต่อ|คำ|ทุก|ทั้งหมด)*(?:คำสั่ง|คำแนะนำ|กฎ)(?:ก่อนหน้า|ข้างต้น|ทั้งหมด|เดิม)"),
)
