"""The table of `pointsman levels`, and its notes."""

from rich.console import Console

from pointsman_cli.explain.levels import notes, table
from pointsman_contracts.attainment import AttainmentSum, AttainmentSums
from pointsman_contracts.usage import LostSum


def test_refused_requests_count_as_not_kept_and_unknown_answers_not_at_all() -> None:
    rows = (
        AttainmentSum(
            service_class="gold", kept=3, missed=1, unknown=5, refused=2, tokens=7200, predicted=1,
            predicted_us=640_000, got_us=702_000,
        ),
        AttainmentSum(service_class="bulk", refused=2),
    )  # fmt: skip
    lost = (LostSum(type="response.completed.v1", count=1, from_ms=0, to_ms=0),)
    sums = AttainmentSums(recorder="r", rows=rows, since_ms=0, until_ms=3_600_000, lost=lost, behind=3)
    console = Console(width=120)
    with console.capture() as shown:
        console.print(table(sums, ("class",)))
    head, gold, refused = (line.split() for line in shown.get().splitlines())
    assert head[:2] == ["class", "kept"]
    assert gold == ["gold", "50.0%", "1", "5", "2", "2.0", "640", "ms", "702", "ms"]
    assert refused[:5] == ["bulk", "0.0%", "0", "0", "2"]
    assert notes(sums) == [
        "From 1970-01-01 00:00:00 UTC to 1970-01-01 01:00:00 UTC.",
        "Missing: the ends of 1 request never reached the stream of events.",
        "The recorder is 3 events behind.",
    ]
    assert "No request with a service level" in notes(AttainmentSums(recorder="r", since_ms=0, until_ms=1))[1]
