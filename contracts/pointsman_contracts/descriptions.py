"""The texts below each field of a model, for schemas and references.

pydantic reads it too (`use_attribute_docstrings`), but as each class is made: a tenth of what a process needs to start.
"""

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise
from typing import Final

from msgspec import Struct
from pydantic import BaseModel

_BASES: Final = (BaseModel, Struct)


def descriptions(model: type[BaseModel | Struct]) -> dict[str, str]:
    """Field → what is written below it, there or in the class that it is inherited from.
    Classes at the top level of a module alone."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base not in _BASES and issubclass(base, _BASES):
            # A field that is declared again without words has none.
            found |= _classes(base.__module__).get(base.__name__, {})
    return {name: words for name, words in found.items() if words}


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
