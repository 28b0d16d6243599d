"""Nobody is forgotten in the table of who speaks to whom."""

from pointsman_contracts.catalogue import MESSAGES
from pointsman_contracts.parties import AGENT, AUDITOR, NEXT, OPERATOR, PARTIES, SERVICES
from pointsman_contracts.subjects import STAGES


def test_every_message_has_senders_and_readers_and_no_others_are_named() -> None:
    assert set(PARTIES) == {message.address.type_id for message in MESSAGES}
    known = {*SERVICES, AGENT, OPERATOR, AUDITOR}
    for message, parties in PARTIES.items():
        assert parties.senders, f"nobody sends {message}"
        assert parties.readers, f"nobody reads {message}"
        assert {*parties.senders, *parties.readers} <= known


def test_every_stage_of_the_project_can_be_reached() -> None:
    reached = {stage for stages in NEXT.values() for stage in stages}
    assert reached == set(STAGES) - {"preprocessor"} == set(PARTIES["request.journey.v1"].readers)
    assert set(NEXT) == set(PARTIES["request.journey.v1"].senders)
