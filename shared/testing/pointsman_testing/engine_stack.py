"""A gateway before engines that run already."""

from pointsman_testing.real_engine import RealEngine
from pointsman_testing.stack import EngineProcess, KvTelling, Stack


class EngineStack(Stack):
    """Set `real` and `model` before it begins."""

    real: list[RealEngine]
    model: str
    """The base model that they serve."""

    def _engine(self, name: str, speedup: float, cache: KvTelling | None) -> EngineProcess:
        del speedup, cache
        return next(each for each in self.real if each.name == name)
