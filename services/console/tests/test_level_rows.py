"""The page of service levels: shares, rates and means of a recorder's sums."""

from pointsman_console.domain.level_rows import level_document
from pointsman_contracts.attainment import AttainmentSum, AttainmentSums
from pointsman_contracts.usage import LostSum


def test_rows_have_shares_rates_and_means_and_the_least_kept_stands_first() -> None:
    rows = (
        AttainmentSum(tenant="only-unknown", unknown=4),
        AttainmentSum(
            tenant="good", kept=3, missed=1, unknown=5, refused=2, tokens=7200, promised=9, promised_us=9 * 800_000,
            predicted=2, predicted_us=3000, got_us=4000,
        ),
        AttainmentSum(tenant="bad", kept=0, refused=2),
    )  # fmt: skip
    lost = (
        LostSum(type="request.scheduled.v1", count=7, from_ms=0, to_ms=0),
        LostSum(type="response.completed.v1", count=1, from_ms=0, to_ms=0),
    )
    sums = AttainmentSums(recorder="r", rows=rows, since_ms=0, until_ms=3_600_000, lost=lost)
    document = level_document(sums, ("tenant",))
    assert isinstance(document, dict)
    found = document["rows"]
    assert isinstance(found, list)
    assert [row["tenant"] for row in found if isinstance(row, dict)] == ["bad", "good", "only-unknown"]
    bad, good, unknown = found
    assert isinstance(bad, dict)
    assert isinstance(unknown, dict)
    assert (bad["share"], bad["predicted_ms"], unknown["share"]) == (0.0, None, None)
    assert good == {
        "tenant": "good", "kept": 3, "missed": 1, "unknown": 5, "refused": 2, "share": 0.5, "tokens_a_second": 2.0,
        "promised_ms": 800.0, "predicted_ms": 1.5, "got_ms": 2.0,
    }  # fmt: skip
    assert document["lost"] == 1
