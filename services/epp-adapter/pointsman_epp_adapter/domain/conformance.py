"""Headers by which the conformance tests of the Gateway API Inference Extension choose an endpoint and ask who served
(`conformance/utils/headers` and `pkg/lwepp` there)."""

from typing import Final

from pointsman_epp_adapter.domain.envoy_events import RequestHead, ResponseHead
from pointsman_epp_adapter.domain.mutation import Header

SELECTION: Final = b"test-epp-endpoint-selection"
SERVED: Final = b"x-conformance-test-served-endpoint"
_UNTOLD: Final = b"fail: missing destination endpoint served metadata"


def restricted(head: RequestHead) -> RequestHead:
    """The request with its subset as the header has it, which outranks Envoy's."""
    wanted = dict(head.headers).get(SELECTION, b"").decode("ascii", "replace")
    if not wanted:
        return head
    return head._replace(subset=tuple(part.strip() for part in wanted.split(",") if part.strip()))


def served(head: ResponseHead) -> Header:
    """Who answered, as Envoy reports it."""
    return SERVED, head.served.encode("ascii", "replace") or _UNTOLD
