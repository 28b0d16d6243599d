"""Names for the arrays that candidates travel in."""

from typing import Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

FEW: Final = 64
"""Up to this number of entries, a list costs less than numpy's calls."""

Floats: TypeAlias = NDArray[np.float64]
Scores: TypeAlias = Floats | list[float]
"""A list where that is made anyhow, of `FEW` candidates or fewer; its maker doesn't change it afterwards."""
Number = TypeVar("Number", float, Floats)
"""A value of one worker, or the column of all."""
Ints: TypeAlias = NDArray[np.int64]
"""Fleet rows, or codes."""
Bools: TypeAlias = NDArray[np.bool_]
Blocks: TypeAlias = NDArray[np.uint64]
"""Chained hashes of prompt blocks, first block first."""


def least(column: Floats) -> float:
    """The least entry of a column that isn't empty. Finding its place costs half of what numpy's `min` does."""
    return column.item(column.argmin())


def greatest(column: Floats) -> float:
    """The greatest entry, likewise."""
    return column.item(column.argmax())
