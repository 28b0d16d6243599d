"""The pause that clients read in an engine's error."""

import pytest

from pointsman_edge.sending.engine_pause import error_headers

TYPE = (b"content-type", b"application/json")


@pytest.mark.parametrize(
    ("told", "pause"),
    [
        ((b"retry-after", b"30"), b"30"),
        ((b"retry-after", b"0"), b"0"),
        ((b"retry-after-ms", b"1500"), b"2"),
        ((b"retry-after", b"31536000"), b"300"),
        ((b"retry-after", b"Wed, 21 Oct 2015 07:28:00 GMT"), b"0"),
        ((b"retry-after", b"Sun, 06 Nov 2094 08:49:37 GMT"), b"300"),
        ((b"retry-after", b"1500ms"), b"2"),
        ((b"retry-after", b"-5"), None),
        ((b"retry-after", b"99999999999999999999"), None),
        ((b"retry-after", b"\xff"), None),
        ((b"x-other", b"-5"), None),
    ],
)
def test_a_client_reads_a_pause_in_seconds_of_five_minutes_at_most_or_none(
    told: tuple[bytes, bytes], pause: bytes | None
) -> None:
    headers = error_headers([(b"content-type", b"text/html"), (b"x-kept", b"1"), told])
    other = [told] if told[0] == b"x-other" else []
    assert headers == [(b"x-kept", b"1"), *other, TYPE, *([] if pause is None else [(b"retry-after", pause)])]
