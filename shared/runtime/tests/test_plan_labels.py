"""Plans become labels, and never more than a few."""

from pointsman_runtime.telling.plan_labels import OTHER, PLANS, PlanLabels


def test_plans_beyond_the_first_share_a_label_and_known_ones_keep_theirs() -> None:
    labels = PlanLabels()
    names = [f"plan-{number}" for number in range(PLANS)]
    assert [labels.of(name) for name in names] == names
    assert [labels.of("one-more"), labels.of("plan-0"), labels.of("another")] == [OTHER, "plan-0", OTHER]
