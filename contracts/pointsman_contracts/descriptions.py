"""What is written below each field of a model, for schemas and references.

pydantic reads it too (`use_attribute_docstrings`), but as each class is made: a tenth of what a process needs to start.
"""

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Field → what is written below it, there or in the class that it is inherited from. Models of a module alone."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base is not BaseModel and issubclass(base, BaseModel):
            # A field that is declared again without words has none.
            found |= _classes(base.__module__)[base.__name__]
    return {name: words for name, words in found.items() if words}


class Described(GenerateJsonSchema):
    """Schemas in which each property has its description."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """As pydantic's, with descriptions."""
        document = super().model_schema(schema)
        for name, words in descriptions(schema["cls"]).items():
            if name in document.get("properties", ()):
                document["properties"][name]["description"] = words
        return document


@cache
def _classes(module: str) -> dict[str, dict[str, str]]:
    """Class → field → words, which may be none."""
    source = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: _below(node.body) for node in source.body if isinstance(node, ast.ClassDef)}


def _below(body: list[ast.stmt]) -> dict[str, str]:
    return {
        field.target.id: _words(below)
        for field, below in pairwise([*body, ast.Pass()])
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def _words(statement: ast.stmt) -> str:
    match statement:
        case ast.Expr(ast.Constant(str(text))):
            return inspect.cleandoc(text)
        case _:
            return ""
