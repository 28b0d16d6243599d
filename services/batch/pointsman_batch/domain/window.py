"""Whether a batch or an item will be done before its window ends. Pure; times are in unix milliseconds."""

from typing import Final

_SHARE: Final = 0.8
"""A batch that is foreseen to need more of the time that is left is at risk."""
_TOO_SOON: Final = 0.05
"""In this part of its window, the pace of a batch says too little."""
_LATE: Final = 0.8
"""An item that has waited for this part of its window is at risk."""


def is_batch_at_risk(*, done: int, total: int, begun_ms: int, expires_ms: int, now_ms: int) -> bool:
    """Whether lines of a batch may expire, at the pace so far. `done`: lines that have a result."""
    left, left_ms, passed_ms = total - done, expires_ms - now_ms, now_ms - begun_ms
    if left <= 0 or passed_ms <= _TOO_SOON * (expires_ms - begun_ms):
        return False
    # Without any result, half a window is too long.
    return passed_ms * left > _SHARE * left_ms * done if done else passed_ms > left_ms


def is_item_at_risk(*, stored_ms: int, expires_ms: int, now_ms: int) -> bool:
    return now_ms - stored_ms > _LATE * (expires_ms - stored_ms)
