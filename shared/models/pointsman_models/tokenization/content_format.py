"""Whether a chat template takes the content of a message as a text or as a list of parts.

vLLM (`vllm/renderers/hf.py`) looks in the template's syntax tree for a loop over `message['content']` of a `message`
from `messages`: with one the template gets parts (`openai`), without one a text (`string`). vLLM follows no other way
to reach the content, so this module doesn't either.
"""

from typing import Literal

from jinja2 import nodes

ContentFormat = Literal["string", "openai"]


def content_format_of(template: nodes.Template) -> ContentFormat:
    """The form in which this template gets content."""
    lists = _aliases(template, "messages")
    loops = list(template.find_all(nodes.For))
    over_messages = [loop.target for loop in loops if any(_reads(loop.iter, name) for name in lists)]
    names = [target.name for target in over_messages if isinstance(target, nodes.Name)]
    if len(names) < len(over_messages):
        return "string"  # vLLM takes a template that it can't follow for one of texts
    return "openai" if any(_reads(loop.iter, name, "content") for loop in loops for name in names) else "string"


def _aliases(template: nodes.Template, variable: str) -> list[str]:
    """The variable, and those that it, a filtered form of it or a slice of it is assigned to."""
    found = [variable]
    for name in found:  # grows while it is walked
        for assignment in template.find_all(nodes.Assign):
            target = assignment.target
            if _reads(assignment.node, name) and isinstance(target, nodes.Name) and target.name not in found:
                found.append(target.name)
    return found


def _reads(node: nodes.Node | None, variable: str, key: str | None = None) -> bool:
    """Whether this is the variable (with `key`: that entry of it), filtered, tested or sliced."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _reads(node.node, variable, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, variable, key)
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == variable
    if isinstance(node, nodes.Getitem):
        return _reads(node.node, variable) and isinstance(node.arg, nodes.Const) and node.arg.value == key
    return isinstance(node, nodes.Getattr) and _reads(node.node, variable) and node.attr == key
