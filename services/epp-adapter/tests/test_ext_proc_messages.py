"""The messages, against bytes of the wire."""

from pointsman_epp_adapter.adapters.ext_proc_messages import ProcessingRequest, ProcessingResponse


def test_envoys_messages_are_read_and_the_answers_to_it_written() -> None:
    # request_body {body: "hi", end_of_stream: true}: fields 4, 1 and 2 of external_processor.proto.
    request = ProcessingRequest.FromString(b"\x22\x06\x0a\x02hi\x10\x01")
    assert (request.WhichOneof("request"), request.request_body.body) == ("request_body", b"hi")
    assert request.request_body.end_of_stream
    response = ProcessingResponse()
    response.immediate_response.status.code = 429
    assert ProcessingResponse.FromString(response.SerializeToString()).immediate_response.status.code == 429


def test_metadata_takes_whatever_json_has() -> None:
    response = ProcessingResponse()
    response.dynamic_metadata.fields["envoy.lb"].struct_value.fields["endpoint"].string_value = "10.0.0.1:8000"
    assert response.dynamic_metadata.fields["envoy.lb"].struct_value.fields["endpoint"].string_value == "10.0.0.1:8000"
