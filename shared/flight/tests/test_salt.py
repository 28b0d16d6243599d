"""Renamed hashes: equal ones stay equal, different ones differ, and nothing is known of them without the key."""

import stat
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pointsman_flight.salt import LEAST_HASH, Salt, kept_in

SALT = Salt(b"a key of this test")
HASHES = st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=50)


@given(HASHES)
def test_different_hashes_stay_different(hashes: list[int]) -> None:
    renamed: list[int] = SALT.rename_hashes(np.array(hashes, dtype=np.uint64)).tolist()
    assert len(set(renamed)) == len(hashes)


@given(HASHES)
def test_a_hash_gets_the_same_name_wherever_it_stands(hashes: list[int]) -> None:
    together: list[int] = SALT.rename_hashes(np.array(hashes, dtype=np.uint64)).tolist()
    assert together == [int(SALT.rename_hashes(np.array([one], dtype=np.uint64))[0]) for one in hashes]
    assert SALT.rename_packed(np.array(hashes, dtype="<u8").tobytes()) == np.array(together, dtype="<u8").tobytes()


def test_numbers_that_are_no_hashes_keep_their_value() -> None:
    numbers = np.array([0, 1, LEAST_HASH - 1, 1_790_000_000_000, 2**48, 2**63], dtype=np.uint64)
    assert SALT.rename_hashes(numbers).tolist() == numbers.tolist()


def test_another_key_gives_other_names() -> None:
    hashes = np.random.default_rng(1).integers(LEAST_HASH, 2**63, size=1000, dtype=np.uint64)
    assert not np.isin(SALT.rename_hashes(hashes), hashes).any()
    assert not np.isin(SALT.rename_hashes(hashes), Salt(b"another").rename_hashes(hashes)).any()


def test_a_directory_keeps_its_key_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    first = kept_in(tmp_path / "flight")
    assert kept_in(tmp_path / "flight").name == first.name
    (file,) = (tmp_path / "flight").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert kept_in(tmp_path / "other").name != first.name


def test_ids_are_hashed_and_an_empty_one_stays_empty() -> None:
    assert SALT.hash_id("request-1") == SALT.hash_id("request-1") != SALT.hash_id("request-2")
    assert SALT.hash_id("") == ""


def test_many_hashes_are_renamed_as_few_are() -> None:
    hashes = np.random.default_rng(1).integers(1, 2**63, size=10_000, dtype=np.uint64)
    hashes[5_000:5_010] = 7
    halves = np.concatenate((SALT.rename_hashes(hashes[:777]), SALT.rename_hashes(hashes[777:])))
    assert SALT.rename_hashes(hashes).tolist() == halves.tolist()
    assert halves[5_000:5_010].tolist() == [7] * 10
