"""A small classifier trained by the operator: logistic regression over hashed n-grams of characters, in a file."""

from collections.abc import Sequence

from pydantic import Field, ValidationError

from pointsman_core.plugins import PluginError
from pointsman_guard.domain.folding import fold
from pointsman_guard.domain.linear_model import LinearModel
from pointsman_plugins.guarding import ANY_ROLE, Checked, Detector, DetectorFailed, Finding, Outside
from pointsman_plugins.plugin import Params


class LinearParams(Params):
    """Parameters of `linear`."""

    file: str
    """The model, written by `python -m pointsman_guard.training`."""
    category: str = "injection.classified"
    threshold: float = Field(default=0.9, ge=0, le=1)
    """Minimum probability of a finding."""
    roles: tuple[str, ...] = ("user", "tool")
    """Roles whose prompt texts are checked; `*` is every role. All texts of an answer are checked."""


class Linear(Detector[LinearParams]):
    """Finds texts that resemble its training texts."""

    type_name = "linear"

    def setup(self) -> None:
        self._model: LinearModel | None = None

    def bind(self, outside: Outside) -> None:
        """Read the model."""
        try:
            self._model = LinearModel.decode_weights(outside.read(self.params.file))
        except OSError as error:
            raise PluginError(f"{self.name!r}: {self.params.file}: {type(error).__name__}", ("file",)) from error
        except (ValidationError, ValueError) as error:
            raise PluginError(
                f"{self.name!r}: {self.params.file} isn't a model: {type(error).__name__}", ("file",)
            ) from error

    def detect(self, checked: Checked) -> Sequence[Finding]:
        """Texts above the threshold."""
        model, params = self._model, self.params
        if model is None:
            raise DetectorFailed("isn't bound")
        any_role = checked.direction == "response" or ANY_ROLE in params.roles
        return [
            Finding(params.category, self.name, at)
            for at, text in enumerate(checked.texts)
            if (any_role or text.role in params.roles)
            and model.predict_probability(fold(text.text)) >= params.threshold
        ]
