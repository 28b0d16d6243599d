"""The table of senders and readers has every service."""

from pointsman_contracts.catalogue import MESSAGES
from pointsman_contracts.parties import AGENT, AUDITOR, NEXT, OPERATOR, PARTIES, PRODUCER, SHARED_LOGINS
from pointsman_contracts.services import EVENTS, ITINERARY, SERVICES, STAGES


def test_every_message_has_senders_and_readers_and_no_others_are_named() -> None:
    assert set(PARTIES) == {message.address.type_id for message in MESSAGES}
    known = {*SHARED_LOGINS, AGENT, OPERATOR, AUDITOR, PRODUCER}
    for message, parties in PARTIES.items():
        assert parties.senders, f"no party sends {message}"
        assert parties.readers, f"no party reads {message}"
        assert {*parties.senders, *parties.readers} <= known


def test_every_stage_of_the_project_can_be_reached() -> None:
    reached = {stage for stages in NEXT.values() for stage in stages}
    assert reached == set(STAGES) - {"preprocessor"} == set(PARTIES["request.journey.v1"].readers)
    assert set(NEXT) == set(PARTIES["request.journey.v1"].senders)


def test_the_events_of_the_table_are_the_messages_of_that_kind() -> None:
    assert set(EVENTS) == {message.address.type_id for message in MESSAGES if message.address.kind == "evt"}


def test_every_stage_of_an_itinerary_reads_journeys_and_has_a_verb_of_its_own() -> None:
    assert all("request.journey.v1" in STAGES[name].reads for name in ITINERARY)
    verbs = [stage.verb for stage in STAGES.values()]
    assert len({*verbs, ""}) == len(verbs) + 1


def test_a_rule_of_the_order_names_stages_of_itineraries() -> None:
    rules = [
        (service, rule)
        for service in SERVICES
        for rule in (*service.order, *(service.review.order if service.review else ()))
    ]
    assert rules
    for service, rule in rules:
        assert {service.name, rule.earlier} <= set(ITINERARY), rule.rule
