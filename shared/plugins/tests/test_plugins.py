"""A plugin that can't work as configured is refused before anything runs, with words that help."""

import sys
from abc import abstractmethod
from collections.abc import Mapping
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest
from pydantic import Field

import pointsman_plugins.registry
from pointsman_core.plugins import Key, PluginError, Spec
from pointsman_plugins.plugin import Params, ParamsT_co, Plugin, Reference
from pointsman_plugins.registry import Registry, check_dataflow


class Shape(Plugin[ParamsT_co]):
    """An extension point of these tests."""

    group = "pointsman.test.shapes"

    @abstractmethod
    def area(self) -> float: ...


class CircleParams(Params):
    radius: float = Field(default=1.0, gt=0)


class Circle(Shape[CircleParams]):
    type_name = "circle"

    def setup(self) -> None:
        self.radius = self.params.radius

    def area(self) -> float:
        return 3 * self.radius**2


class SumParams(Params):
    of: tuple[Reference, ...] = ()
    base: Reference | None = None


class Sum(Shape[SumParams]):
    type_name = "sum"

    def setup(self) -> None:
        self.parts = [self.refer(other, Shape) for other in self.params.of]

    def area(self) -> float:
        return sum(part.area() for part in self.parts)


def registry() -> Registry[Shape]:
    return Registry(Shape, (Circle, Sum))


def test_one_type_can_be_used_twice_under_two_names() -> None:
    small, large = registry().build([Spec("circle", "small", {}), Spec("circle", "large", {"radius": 2})])
    assert (small.name, small.area(), large.name, large.area()) == ("small", 3.0, "large", 12.0)


@pytest.mark.requirement("S0-56")
def test_referenced_instances_are_built_first_wherever_they_stand() -> None:
    total, *_ = registry().build(
        [Spec("sum", "total", {"of": ("a", "b")}), Spec("circle", "a", {}), Spec("circle", "b", {})]
    )
    assert total.area() == 6.0


@pytest.mark.requirement("S0-56")
@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([Spec("circel", "c", {})], "unknown shape type 'circel'; did you mean 'circle'\\? known: circle, sum"),
        (
            [Spec("circle", "c", {"radios": 1})],
            r"shape 'c' \(circle\): unknown parameter 'radios'; did you mean 'radius'",
        ),
        ([Spec("circle", "c", {"radius": -1})], r"shape 'c' \(circle\): radius: Input should be greater than 0"),
        (
            [Spec("circle", "c", {}), Spec("circle", "c", {})],
            "'c' is configured twice; give one of them another `name`",
        ),
        ([Spec("sum", "s", {"of": ("nobody",)})], "'s': unknown plugin 'nobody'"),
        ([Spec("sum", "s", {"base": "nobody"})], "'s': unknown plugin 'nobody'"),
        ([Spec("sum", "s", {"of": ("s",)})], "cycle of references: s -> s"),
        (
            [Spec("sum", "a", {"of": ("b",)}), Spec("sum", "b", {"of": ("c",)}), Spec("sum", "c", {"of": ("b",)})],
            "cycle of references: b -> c -> b",
        ),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_offender_and_what_is_known(specs: list[Spec], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        registry().build(specs)


def test_a_reference_to_another_kind_of_plugin_is_refused() -> None:
    class Other(Plugin):
        type_name = "other"

    with pytest.raises(PluginError, match="'total' refers to 'x', which is a other, not a Shape"):
        registry().build([Spec("sum", "total", {"of": ("x",)})], {"x": Other("x", Params(), {})})


@pytest.mark.parametrize(
    ("error", "words"), [(ValueError("no such list"), "no such list"), (OSError("gone"), "OSError: gone")]
)
def test_a_plugin_that_cannot_be_built_is_refused_by_its_place_whatever_it_raises(error: Exception, words: str) -> None:
    class Broken(Circle):
        type_name = "broken"

        def __init__(self, name: str, params: CircleParams, others: Mapping[str, Plugin]) -> None:
            raise error

    shapes = Registry(Shape, (Circle, Broken))
    with pytest.raises(PluginError, match=rf"^shape 'mine' \(broken\): {words}$") as among_others:
        shapes.build([Spec("circle", "c", {}), Spec("broken", "mine", {})])
    assert among_others.value.path == (1,)
    with pytest.raises(PluginError, match=words):
        shapes.one(Spec("broken", "mine", {}))


def test_two_classes_cannot_share_a_type_name() -> None:
    class Impostor(Shape):
        type_name = "circle"

    with pytest.raises(PluginError, match="shape type 'circle' is taken"):
        Registry(Shape, (Circle, Impostor))


class Offered(Shape):
    """Offered by an entry point of these tests."""

    type_name = "offered"

    def area(self) -> float:
        return 7.0


class Half(Shape):
    """Offered without its method."""

    type_name = "half"


def test_types_of_other_distributions_are_found_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def offer(value: str) -> None:
        found = EntryPoints([EntryPoint("some", value, "pointsman.test.shapes")])
        monkeypatch.setattr(pointsman_plugins.registry, "installed", lambda: found)

    monkeypatch.setitem(
        sys.modules, "offering_distribution", cast("ModuleType", SimpleNamespace(Offered=Offered, Half=Half))
    )
    offer("offering_distribution:Offered")
    assert registry().build([Spec("offered", "o", {})])[0].area() == 7.0
    offer("offering_distribution:Half")
    with pytest.raises(PluginError, match="offering_distribution:Half lacks area"):
        registry()
    offer("pathlib:Path")
    with pytest.raises(PluginError, match="pathlib:Path is not a shape"):
        registry()
    offer("no_such_distribution:Offered")
    with pytest.raises(PluginError, match="no_such_distribution:Offered can't be imported: ModuleNotFound"):
        registry()


TENANT: Key[str] = Key("tenant", str)


class Producer(Plugin):
    type_name = "producer"
    produces = (TENANT,)


class Consumer(Plugin):
    type_name = "consumer"
    consumes = (TENANT,)


def test_an_attribute_must_be_produced_before_it_is_consumed() -> None:
    producer, consumer = Producer("p", Params(), {}), Consumer("c", Params(), {})
    check_dataflow([producer, consumer])
    check_dataflow([consumer], given=[TENANT])
    with pytest.raises(PluginError, match="'c' needs the attribute 'tenant': 'p' produces it, but runs later"):
        check_dataflow([consumer, producer])
    with pytest.raises(PluginError, match="'c' needs the attribute 'tenant': no configured plugin produces it"):
        check_dataflow([consumer])
