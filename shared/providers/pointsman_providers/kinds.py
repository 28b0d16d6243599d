"""Every kind of provider."""

from typing import Final

from pointsman_providers import anthropic, azure, bedrock, openai, vertex

KINDS: Final = {kind.name: kind for kind in (openai.KIND, anthropic.KIND, bedrock.KIND, azure.KIND, vertex.KIND)}
"""By name, as the configuration has it."""
