# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# botocore has no types.
"""Holds JSON against botocore's service model of Bedrock: its validator's types, and the bounds, patterns and lists of
words that its validator leaves to the service."""

import base64
import binascii
import re
from functools import cache
from typing import Any, cast

from botocore.model import ServiceModel, Shape
from botocore.session import get_session
from botocore.validate import ParamValidator


@cache
def _service() -> ServiceModel:
    return get_session().get_service_model("bedrock-runtime")


def mismatches(operation: str, model: str, document: dict[str, Any]) -> list[str]:
    """How the body of a request to `operation` differs from the model; empty if it doesn't."""
    shape: Any = _service().operation_model(operation).input_shape
    found: list[str] = []
    given = {"modelId": model, **_decoded(shape, document, found, "$")}
    report = ParamValidator().validate(given, shape)
    if report.has_errors():
        found.append(report.generate_report())
    return found


def _decoded(shape: Any, value: Any, found: list[str], where: str) -> Any:
    """The value as botocore takes it: JSON has bytes in Base64. Adds to `found` what botocore doesn't look at."""
    match shape.type_name:
        case "structure" if isinstance(value, dict):
            if getattr(shape, "is_document_type", False):
                return value
            members = shape.members
            if shape.metadata.get("union") and len(value) != 1:
                found.append(f"{where}: has {sorted(value)}, but takes one of {sorted(members)}")
            return {
                name: _decoded(members[name], item, found, f"{where}.{name}") if name in members else item
                for name, item in value.items()
            }
        case "list" if isinstance(value, list):
            _bounded(shape, len(value), found, where)
            return [_decoded(shape.member, item, found, f"{where}[{place}]") for place, item in enumerate(value)]
        case "map" if isinstance(value, dict):
            return {name: _decoded(shape.value, item, found, f"{where}.{name}") for name, item in value.items()}
        case "blob":
            try:
                return base64.b64decode(value, validate=True)
            except (binascii.Error, TypeError, ValueError):
                found.append(f"{where}: not Base64")
                return b"?"
        case "string" if isinstance(value, str):
            _of_text(shape, value, found, where)
        case "integer" | "long" | "float" | "double" if isinstance(value, int | float):
            _bounded(shape, value, found, where)
        case _:
            pass
    return value


def _of_text(shape: Shape, value: str, found: list[str], where: str) -> None:
    metadata = cast("dict[str, Any]", shape.metadata)
    _bounded(shape, len(value), found, where)
    words = metadata.get("enum")
    if words and value not in words:
        found.append(f"{where}: {value!r} isn't one of {words}")
    pattern = metadata.get("pattern")
    if pattern and re.fullmatch(pattern, value) is None:
        found.append(f"{where}: {value!r:.80} doesn't match {pattern:.60}")


def _bounded(shape: Shape, number: float, found: list[str], where: str) -> None:
    metadata = cast("dict[str, Any]", shape.metadata)
    least, most = metadata.get("min"), metadata.get("max")
    if (least is not None and number < least) or (most is not None and number > most):
        found.append(f"{where}: {number} isn't between {least} and {most}")
