"""Plans become labels, and never more than a few."""

from pointsman_runtime.telling.plan_labels import OTHER, PLANS, PlanLabels


def test_plans_beyond_the_first_share_a_label_and_known_ones_keep_theirs() -> None:
    labels = PlanLabels()
    names = [f"plan-{number}" for number in range(PLANS)]
    assert [labels.label_of(name) for name in names] == names
    assert [labels.label_of("one-more"), labels.label_of("plan-0"), labels.label_of("another")] == [
        OTHER,
        "plan-0",
        OTHER,
    ]
