"""Finds the loop of a chat template that can go on where that of an earlier prompt ended.

Most templates write a conversation by one loop over its messages. What a pass of this loop writes is known again where
all that it reads is known again. A template's syntax tree shows what a pass may read: its message, its place in the
loop, and names from outside. `rewrite_loop` passes these names to `STEPS`, which yields the messages, and counts the
further messages that a pass looks at. A pass that may read anything else makes the template one that is always
rendered whole.
"""

from collections.abc import Iterator
from typing import Final

from jinja2 import nodes

STEPS: Final = "pointsman_steps"
AT: Final = "pointsman_at"
_STEP: Final = "pointsman_step"
PLACES: Final = ("index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem")
"""Attributes of a loop that a pass may read."""

_PURE: Final = (
    nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Assign, nodes.Name, nodes.NSRef, nodes.Const,
    nodes.Compare, nodes.Operand, nodes.BinExpr, nodes.UnaryExpr, nodes.Concat, nodes.CondExpr, nodes.Getattr,
    nodes.Getitem, nodes.Slice, nodes.Call, nodes.Filter, nodes.Test, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair,
    nodes.Keyword, nodes.Continue,
)  # fmt: skip
"""Statements and expressions whose effect is their output, local names and attributes of namespaces."""
_OTHER_FILES: Final = (nodes.Extends, nodes.Block, nodes.Include, nodes.Import, nodes.FromImport)
_FUNCTIONS: Final = frozenset({"raise_exception", "range", "dict", "namespace"})
_RANDOM: Final = "random"
"""The only filter that doesn't depend on its input alone; `map` takes filters by name."""
_OF_MACROS: Final = frozenset({"caller", "varargs", "kwargs"})


def rewrite_loop(tree: nodes.Template) -> bool:
    """Rewrite the last loop whose passes read only what `LoopRun` notes; False where the tree has none."""
    if any(tree.find(kind) is not None for kind in _OTHER_FILES):
        return False
    macros = _find_macros(tree)
    for loop in reversed([*_find_loops(tree.body)]):
        names = _Names(macros, _stored(tree))
        if names.read_pass(loop):
            _rewrite(loop, names)
            return True
    return False


def _find_loops(body: list[nodes.Node]) -> Iterator[nodes.For]:
    """Loops that run at most once for a prompt, in the order of the text."""
    for node in body:
        if isinstance(node, nodes.For):
            yield node
        elif isinstance(node, nodes.If):
            yield from _find_loops([*node.body, *node.elif_, *node.else_])


def _find_macros(tree: nodes.Template) -> dict[str, nodes.Macro]:
    """Macros by name; those that are defined twice or somewhere inside are left out."""
    stored = [each.name for each in tree.find_all(nodes.Name) if each.ctx != "load"]
    found = [each.name for each in tree.find_all(nodes.Macro)] + stored
    return {each.name: each for each in tree.body if isinstance(each, nodes.Macro) and found.count(each.name) == 1}


def _stored(*among: nodes.Node) -> set[str]:
    """Names that are assigned in these nodes."""
    around = nodes.Scope([*among])
    return {name.name for name in around.find_all(nodes.Name) if name.ctx != "load"} | {
        macro.name for macro in around.find_all(nodes.Macro)
    }


class _Names:
    """Names from outside that a pass of a loop reads."""

    def __init__(self, macros: dict[str, nodes.Macro], stored: set[str]) -> None:
        """`stored`: names that the template assigns anywhere."""
        self.whole: Final[dict[str, None]] = {}
        """Names that the pass may read in any way."""
        self.items: Final[list[nodes.Getitem]] = []
        """Reads of one item of a list that is nothing of the pass's own."""
        self.places: Final[list[nodes.Name]] = []
        """Reads of the loop's variable."""
        self._macros: Final = macros
        self._stored: Final = stored
        self._own: set[str] = set()
        """Names that the pass assigns."""

    def read_pass(self, loop: nodes.For) -> bool:
        """Note all names; False where the pass may read anything else."""
        if loop.recursive or loop.test is not None or loop.else_ or not isinstance(loop.target, nodes.Name):
            return False
        target = loop.target.name
        assigned = _stored(*loop.body)
        self._own = {*assigned, target}
        if not assigned.isdisjoint(("loop", target)) or not all(self._read(node, in_loop=True) for node in loop.body):
            return False
        self.whole.pop(target, None)
        return True

    def _read(self, node: nodes.Node, *, in_loop: bool) -> bool:
        """`in_loop`: whether `loop` is the rewritten loop."""
        if isinstance(node, nodes.Name):
            return self._read_name(node)
        if isinstance(node, nodes.NSRef):
            self.whole[node.name] = None
            return True
        if not isinstance(node, _PURE) or (isinstance(node, nodes.Filter | nodes.Const) and _is_random(node)):
            return False
        if isinstance(node, nodes.For):
            return self._read_inner(node, in_loop=in_loop)
        if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name) and node.node.name == "loop":
            if in_loop:
                self.places.append(node.node)
            return node.attr in PLACES or not in_loop
        if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name):
            rest = [*node.args, *node.kwargs, *filter(None, (node.dyn_args, node.dyn_kwargs))]
            return self._may_call(node.node.name) and all(self._read(each, in_loop=in_loop) for each in rest)
        if isinstance(node, nodes.Getitem) and self._is_outside(node.node) and not isinstance(node.arg, nodes.Slice):
            self.items.append(node)
            return self._read(node.arg, in_loop=in_loop)
        return all(self._read(each, in_loop=in_loop) for each in node.iter_child_nodes())

    def _read_name(self, node: nodes.Name) -> bool:
        if node.ctx == "load":
            if node.name in self._macros or node.name in _OF_MACROS or node.name == "loop":
                return False
            self.whole[node.name] = None
        return True

    def _read_inner(self, node: nodes.For, *, in_loop: bool) -> bool:
        # `loop` is the inner loop in its body, and the outer one in what it goes over.
        around = [each for each in (node.test, *node.else_) if each is not None]
        if node.recursive or any(name.name == "loop" for name in nodes.Scope(around).find_all(nodes.Name)):
            return False
        return (
            self._read(node.target, in_loop=False)
            and self._read(node.iter, in_loop=in_loop)
            and all(self._read(each, in_loop=False) for each in (*around, *node.body))
        )

    def _is_outside(self, node: nodes.Node) -> bool:
        return isinstance(node, nodes.Name) and node.name != "loop" and node.name not in self._own | {*self._macros}

    def _may_call(self, name: str) -> bool:
        if name in _FUNCTIONS:
            return name not in self._stored
        macro = self._macros.get(name)
        if macro is None:
            return False
        # A macro sees the names of the template's top, whose values change from one call to the next.
        inside = _Names({}, self._stored)
        inside._own = _stored(macro)
        if not all(inside._read(each, in_loop=False) for each in (*macro.defaults, *macro.body)) or inside.items:
            return False
        outside = [name for name in inside.whole if name not in inside._own]
        self.whole.update(dict.fromkeys(outside))
        return not any(name in self._stored for name in outside)


def _is_random(node: nodes.Filter | nodes.Const) -> bool:
    return _RANDOM in ((node.name,) if isinstance(node, nodes.Filter) else (node.value,))


def _rewrite(loop: nodes.For, names: _Names) -> None:
    lists = dict.fromkeys(each.node.name for each in names.items if isinstance(each.node, nodes.Name))
    for each in names.items:
        call = nodes.Call(nodes.Name(AT, "load"), [each.node, each.arg], [], None, None)
        each.node, each.arg = call, nodes.Const(0)
    for place in names.places:
        place.name = _STEP
    given = [nodes.Tuple([nodes.Name(name, "load") for name in each], "load") for each in (names.whole, lists)]
    loop.iter = nodes.Call(nodes.Name(STEPS, "load"), [loop.iter, *given], [], None, None)
    loop.target = nodes.Tuple([loop.target, nodes.Name(_STEP, "store")], "store")
