"""The places of calls in a stream of choices, one for each call.

Clients put the pieces of a call together by its `index`. Some services stream every call of an answer at 0
(ollama/ollama #15457, su-kaka/gcli2api #406, maximhq/bifrost #1961), others leave it out (router-for-me/CLIProxyAPI
#5058): the arguments of several calls then become one text.
"""

from typing import cast

from pydantic import JsonValue

from pointsman_apis.texts import Answer, objects


class CallPlaces:
    """The places of tool calls in one answer. A new id is a new call."""

    def __init__(self) -> None:
        self._ids: dict[tuple[JsonValue, int], str] = {}
        """Ids by choice and place."""
        self._moved: dict[tuple[JsonValue, JsonValue], int] = {}
        """Places of the calls that began last, by choice and the place that the service gave them."""

    def place_calls(self, fields: dict[str, JsonValue]) -> bool:
        """Give each call in a chunk its own place. Returns whether one had another."""
        changed = False
        for choice in objects(cast("Answer", fields), "choices"):
            delta = choice.get("delta")
            calls = objects(cast("Answer", delta), "tool_calls") if isinstance(delta, dict) else []
            for position, call in enumerate(calls):
                given = cast("JsonValue", call.get("index"))
                place = self._place(cast("JsonValue", choice.get("index", 0)), given, call.get("id"), position)
                if place != given:
                    call["index"] = place
                    changed = True
        return changed

    def _place(self, choice: JsonValue, given: JsonValue, identity: object, position: int) -> int:
        usual = given if isinstance(given, int) else position
        if not isinstance(identity, str) or not identity:
            return self._moved.get((choice, given), usual)
        taken = {place: known for (of, place), known in self._ids.items() if of == choice}
        place = next((place for place, known in taken.items() if known == identity), None)
        if place is None:
            place = usual if usual not in taken else max(taken) + 1
            self._ids[choice, place] = identity
        self._moved[choice, given] = place
        return place
