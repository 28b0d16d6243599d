"""Which requests have the same answer."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_core.fingerprint import SIZE, WITHOUT_EFFECT, deciding, fingerprint

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
BODIES = st.dictionaries(st.sampled_from(["messages", "seed", "stream", "n", "user", "tools"]), VALUES, max_size=5)


@settings(max_examples=50)
@given(BODIES)
def test_neither_the_order_of_members_nor_the_client_changes_it(body: dict[str, object]) -> None:
    turned = dict(reversed(body.items())) | dict.fromkeys(WITHOUT_EFFECT, "another")
    found = fingerprint("chat.completions", deciding(body))
    assert found == fingerprint("chat.completions", deciding(turned))
    assert found != fingerprint("completions", deciding(body))
    assert found != fingerprint("chat.completions", deciding(body | {"more": True}))
    assert len(found) == SIZE
