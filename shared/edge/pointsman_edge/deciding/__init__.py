"""Where a request goes: asked of the stages, or decided by the edge alone."""
