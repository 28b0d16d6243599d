"""Two models on two pools: one choice of model and engine against a choice of the model, then of the engine."""
