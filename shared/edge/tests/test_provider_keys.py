"""Which of a provider's credentials a request goes with."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman_core.config import load
from pointsman_core.refusal import Refusal
from pointsman_edge.credentials.provider_keys import OF_CREDENTIAL, ProviderKeys, is_of_credential, limits_of_all
from pointsman_providers.limits import ProviderLimits
from pointsman_providers.resolve import Resolved, resolve

MODEL = "m"


def provider(*credentials: str) -> Resolved:
    return resolve(load({"providers": {"far": {"kind": "openai", "credential": list(credentials)}}}))["far"]


FOUR = provider("env:A", "env:B", "env:C", "file:/d")


@given(
    steps=st.lists(
        st.tuples(
            st.floats(0, 40), st.sampled_from(["s-1", "s-2", "s-3"]), st.sampled_from([200, *sorted(OF_CREDENTIAL)]),
            st.none() | st.floats(-5, 1e6),
        ),
        max_size=60,
    )
)  # fmt: skip
def test_a_request_never_goes_with_a_credential_that_pauses_and_is_refused_only_while_all_of_them_do(
    steps: list[tuple[float, str, int, float | None]],
) -> None:
    keys, now = ProviderKeys(), 0.0
    paused: dict[str, float] = {}
    first: dict[str, str] = {}
    for passed, session, status, pause_s in steps:
        now += passed
        free = {each for each in FOUR.credentials if paused.get(each, 0.0) <= now}
        try:
            chosen = keys.choose_key(FOUR, MODEL, session, now)
        except Refusal:
            assert not free
            continue
        assert chosen.credential in free
        if len(free) == len(FOUR.credentials):
            # A session comes back to the credential whose account has its cached prompts.
            assert first.setdefault(session, str(chosen.credential)) == chosen.credential
        if is_of_credential(chosen, status):
            told = keys.record_refusal(chosen, MODEL, status, pause_s, now)
            pause = max(1.0, pause_s or (5.0 if status == 429 else 60.0))
            paused[str(chosen.credential)] = now + pause
            waits = [paused.get(each, 0.0) - now for each in FOUR.credentials]
            assert (told is None) is (min(waits) <= 0)
            assert told is None or abs(told - min(waits)) < 1e-6


def test_sessions_are_spread_over_all_credentials() -> None:
    chosen = [ProviderKeys().choose_key(FOUR, MODEL, f"s-{number}", 0.0).credential for number in range(400)]
    assert all(60 <= chosen.count(each) <= 140 for each in FOUR.credentials)


def test_a_limit_is_for_the_model_that_reached_it() -> None:
    keys, two = ProviderKeys(), provider("env:A", "env:B")
    keys.record_refusal(two._replace(credential="env:A"), MODEL, 429, 30.0, 0.0)
    assert keys.choose_key(two, MODEL, "s", 1.0).credential == "env:B"
    assert {keys.choose_key(two, "other", f"s-{number}", 1.0).credential for number in range(20)} == {"env:A", "env:B"}


def test_a_single_credential_never_pauses_and_what_is_left_of_its_quota_is_the_providers() -> None:
    keys, one, told = ProviderKeys(), provider("env:A"), ProviderLimits(None, 0.25)
    assert not any(is_of_credential(one, status) for status in OF_CREDENTIAL)
    assert keys.choose_key(one, MODEL, "s", 0.0) is one
    assert limits_of_all(one, told).remaining == 0.25
    assert limits_of_all(FOUR, told).remaining is None
