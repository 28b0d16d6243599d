"""Calls of tools as clients read them: a place and an id each, and arguments that are a text.

Clients put the pieces of a call together by its `index`. Some services stream every call of an answer at 0
(ollama/ollama #15457, su-kaka/gcli2api #406, maximhq/bifrost #1961), others leave it out (router-for-me/CLIProxyAPI
#5058): the arguments of several calls then become one text. Others send no id (openai/openai-dotnet #428), which the
call's result has to name, arguments as an object (mrdushidush/claudette #238), or none (langchain-ai/langchain #34242).
"""

from typing import cast

from pydantic import JsonValue

from pointsman_apis.texts import Answer, index_of, objects
from pointsman_providers.chat_answer import arguments_text


def mend_calls(fields: dict[str, JsonValue]) -> bool:
    """Give each call in a document its id and its arguments. Returns whether one had others."""
    changed = False
    for choice in objects(cast("Answer", fields), "choices"):
        message = choice.get("message")
        calls = objects(cast("Answer", message), "tool_calls") if isinstance(message, dict) else []
        for position, call in enumerate(calls):
            if not call.get("id"):
                call["id"] = _made_id(position)
                changed = True
            changed = _mend_arguments(call, whole=True) or changed
    return changed


class CallPlaces:
    """The places of tool calls in one answer. A new id is a new call."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int | str, int], str] = {}
        """Ids by choice and place."""
        self._moved: dict[tuple[int | str, int | None], int] = {}
        """Places of the calls that began last, by choice and the place that the service gave them."""

    def place_calls(self, fields: dict[str, JsonValue]) -> bool:
        """Give each call in a chunk its own place, its id and its arguments. Returns whether one had others."""
        changed = False
        for choice in objects(cast("Answer", fields), "choices"):
            delta = choice.get("delta")
            calls = objects(cast("Answer", delta), "tool_calls") if isinstance(delta, dict) else []
            number = index_of(choice)
            for position, call in enumerate(calls):
                given = call.get("index")
                place = self._place(number, given if isinstance(given, int) else None, call.get("id"), position)
                if place != given:
                    call["index"] = place
                    changed = True
                if not call.get("id") and (number, place) not in self._ids and _name_of(call):
                    call["id"] = self._ids[number, place] = _made_id(place)
                    changed = True
                changed = _mend_arguments(call, whole=False) or changed
        return changed

    def _place(self, choice: int | str, given: int | None, identity: object, position: int) -> int:
        usual = position if given is None else given
        if not isinstance(identity, str) or not identity:
            return self._moved.get((choice, given), usual)
        taken = {place: known for (of, place), known in self._ids.items() if of == choice}
        place = next((place for place, known in taken.items() if known == identity), None)
        if place is None:
            place = usual if usual not in taken else max(taken) + 1
            self._ids[choice, place] = identity
        self._moved[choice, given] = place
        return place


def _made_id(place: int) -> str:
    return f"call_{place}"


def _name_of(call: dict[str, object]) -> object:
    function = call.get("function")
    return cast("Answer", function).get("name") if isinstance(function, dict) else None


def _mend_arguments(call: dict[str, object], *, whole: bool) -> bool:
    """Make a call's arguments a text. `whole`: they are all there, so that none are those of an empty object."""
    function = call.get("function")
    if not isinstance(function, dict):
        return False
    holder = cast("dict[str, object]", function)
    given = cast("JsonValue", holder.get("arguments"))
    if not (isinstance(given, dict) or (whole and not given)):
        return False
    holder["arguments"] = arguments_text(given)
    return True
