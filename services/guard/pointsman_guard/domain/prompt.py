"""The texts of a prompt, and its body with other texts in their place."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self, cast

from pydantic import JsonValue

from pointsman_apis import named
from pointsman_apis.chat import CHAT
from pointsman_apis.prompt_texts import Document, PromptSlot, body_members, prompt_texts
from pointsman_contracts.journey import BodyEdit
from pointsman_guard.domain.redaction import Redacted
from pointsman_plugins.guarding import CheckedText, Finding

DETECTOR: Final = "reader"
"""Name of the detector for parts without readable text."""


class GuardedPrompt(NamedTuple):
    """The part of a request's body that the model reads."""

    document: Document
    slots: Sequence[PromptSlot]
    unreadable: Sequence[Finding]

    @classmethod
    def from_body(cls, body: bytes, edits: Iterable[BodyEdit] = (), api: str = CHAT.name) -> Self:
        """The prompt of a body with these changes. Raises ValueError when it isn't a JSON object, a form or empty."""
        members = body_members(body)
        for edit in edits:
            if edit.remove:
                members.pop(edit.field, None)
            else:
                members[edit.field] = edit.value
        slots, unread = prompt_texts(members, everything=named(api).passed)
        return cls(members, slots, [Finding(f"unreadable.{kind}", DETECTOR) for kind in unread])

    @property
    def list_texts(self) -> list[CheckedText]:
        """In the order of the body."""
        return [CheckedText(slot.part, slot.role, slot.text) for slot in self.slots]

    def locate_finding(self, finding: Finding) -> str:
        """The place of a finding, as OpenAI's errors name it."""
        return self.slots[finding.at].part if finding.at is not None else self._widest()

    def edits_for(self, redaction: Redacted) -> tuple[BodyEdit, ...]:
        """The changes of the body's top level. Changes this prompt into the redacted one."""
        for index, text in redaction.texts.items():
            self.slots[index].replace_text(text)
        changed = dict.fromkeys(self.slots[index].top_level_field for index in redaction.texts)
        return tuple(BodyEdit(field=field, value=cast("JsonValue", self.document[field])) for field in changed)

    def _widest(self) -> str:
        return next((name for name in ("messages", "input", "prompt") if name in self.document), "")
