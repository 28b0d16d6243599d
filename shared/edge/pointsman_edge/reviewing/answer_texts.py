"""The texts of an answer that has left."""

from pointsman_apis.api import Api
from pointsman_apis.streams import EventSplitter
from pointsman_contracts.journey import AnswerUse
from pointsman_contracts.response_stage import AnswerText
from pointsman_edge.reviewing.answer_window import AnswerWindow
from pointsman_edge.reviewing.whole_answer import WholeAnswer


def texts_of_whole(answer: WholeAnswer) -> tuple[AnswerText, ...] | None:
    """The texts of an answer that isn't streamed; None if some part of it can't be read."""
    reading = answer.reading
    if reading is None:
        return None
    return tuple([AnswerText(part=slot.part, kind=slot.kind, text=slot.text) for slot in reading.slots])


def texts_of_stream(api: Api, body: bytes) -> tuple[AnswerText, ...] | None:
    """The texts of a whole stream of events; None if some part of it can't be read."""
    splitter = EventSplitter()
    window = AnswerWindow(api, AnswerUse(mode="buffer", content="text"))
    whole = [window.add_event(event) for event in (*splitter.split_bytes(body), *splitter.rest())]
    return window.held_texts() if all(whole) else None
