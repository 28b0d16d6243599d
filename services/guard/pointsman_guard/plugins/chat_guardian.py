"""A guardian model behind a chat API, which answers in words, as Llama Guard and Granite Guardian do."""

import re
from collections.abc import Sequence

from pydantic import Field, JsonValue

from pointsman_guard.domain.guardian import Guardian, GuardianParams, Object, member
from pointsman_plugins.guarding import Checked, DetectorFailed, Finding


class ChatGuardianParams(GuardianParams):
    """Parameters of `chat-guardian`."""

    model: str
    """The guardian's model name. Its `url` ends in `/chat/completions`."""
    instructions: str | None = None
    """A system message, for guardians that need the categories to look for; most have them in their template."""
    safe: str = "safe"
    """Prefix of an answer without a finding, e.g. `No` for Granite Guardian."""
    unsafe: str = "unsafe"
    """Prefix of an answer with a finding. Any other answer is a failure."""
    prefix: str = "guardian"
    """Categories are `<prefix>.<the names in the answer>`, e.g. `guardian.s1`; without a name `<prefix>`."""
    max_tokens: int = Field(default=32, ge=1)


class ChatGuardian(Guardian[ChatGuardianParams]):
    """Sends the conversation, with the text to check as its last message."""

    type_name = "chat-guardian"

    def build_question(self, checked: Checked, shown: Sequence[int]) -> Object:
        params = self.params
        messages: list[JsonValue] = []
        if params.instructions is not None:
            messages.append({"role": "system", "content": params.instructions})
        for at in shown:
            text = checked.texts[at]
            role = "assistant" if text.role == "assistant" else "user"
            messages.append({"role": role, "content": text.text})
        return {"model": params.model, "messages": messages, "max_tokens": params.max_tokens, "temperature": 0}

    def read_findings(self, answer: JsonValue, checked: Checked, shown: Sequence[int]) -> Sequence[Finding]:
        choices = member(answer, "choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        said = member(member(first, "message"), "content")
        words = said.strip().lower() if isinstance(said, str) else ""
        params = self.params
        if words.startswith(params.unsafe.lower()):
            named = re.findall(r"[a-z0-9][a-z0-9_\-]*", words[len(params.unsafe) :])
            categories = [f"{params.prefix}.{name}" for name in named] or [params.prefix]
            return [Finding(category, self.name) for category in categories]
        if words.startswith(params.safe.lower()):
            return ()
        raise DetectorFailed(f"gave an answer that begins with neither {params.safe!r} nor {params.unsafe!r}")
