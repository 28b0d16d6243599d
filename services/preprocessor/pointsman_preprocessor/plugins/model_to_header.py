"""`model-to-header`: the model of the body in a header, for routes and proxies that only see headers (S1-14)."""

from pydantic import Field

from pointsman_core.config import Config
from pointsman_core.header_names import SettableHeader
from pointsman_core.plugins import PluginError
from pointsman_plugins.plugin import Params
from pointsman_plugins.preprocessing import Incoming, RequestProcessor


class ModelToHeaderParams(Params):
    """Names of the headers."""

    header: SettableHeader = "X-Gateway-Model-Name"
    base_header: SettableHeader = "X-Gateway-Base-Model-Name"
    bases: dict[str, str] = Field(default_factory=dict[str, str])
    """Adapter → base model, for pools that list more than one base model."""


class ModelToHeader(RequestProcessor[ModelToHeaderParams]):
    """Sets both headers; the base model is empty when nobody knows it."""

    type_name = "model-to-header"

    def setup(self) -> None:
        self._base: dict[str, str] = {}

    def bind(self, config: Config) -> None:
        base: dict[str, str] = {}
        for pool in config.pools.values():
            bases = [model for model in pool.models if model not in pool.loras]
            base |= {model: model for model in bases}
            for lora in pool.loras:
                if lora in self.params.bases:
                    base[lora] = self.params.bases[lora]
                elif len(bases) == 1:
                    base[lora] = bases[0]
                elif bases:
                    raise PluginError(
                        f"adapter {lora!r} may belong to {', '.join(bases)}; say which in `bases`", ("bases",)
                    )
        for name, model in config.models.items():
            base[name] = base.get(model.served_as or name, model.served_as or name)
        self._base = base

    def process(self, incoming: Incoming) -> None:
        model = incoming.model
        incoming.set_header(self.params.header, model, tells="model")
        incoming.set_header(self.params.base_header, self._base.get(model, ""), tells="base_model")
