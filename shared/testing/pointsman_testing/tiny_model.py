"""A language model that is made in a second: a Llama of two layers with random weights, and adapters for it. Its
answers mean nothing; they are the same for the same prompt."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pointsman_testing.tiny_tokenizer import HEADERS, tiny_tokenizer, write_tokenizer

HIDDEN: Final = 128
LAYERS: Final = 2
HEADS: Final = 4
KV_HEADS: Final = 2
HEAD: Final = HIDDEN // HEADS
INNER: Final = 256
LONGEST: Final = 8192
"""Positions."""
RANK: Final = 8
"""Rank of the adapters."""

Tensors = dict[str, NDArray[np.float32]]


def write_model(folder: Path, *, template: str | None = HEADERS, seed: int = 1) -> Path:
    """Write weights, configuration and tokenizer into `folder`; return it."""
    write_tokenizer(folder, template)
    added = json.loads(tiny_tokenizer())["added_tokens"]
    ids = {entry["content"]: entry["id"] for entry in added}
    vocabulary = -(-len(json.loads(tiny_tokenizer())["model"]["vocab"]) // 64) * 64
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "max_position_embeddings": LONGEST,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": vocabulary,
        "bos_token_id": ids["<|begin_of_text|>"],
        "eos_token_id": ids["<|eot_id|>"],
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _write_tensors(folder / "model.safetensors", dict(_weights(vocabulary, np.random.default_rng(seed))))
    return folder


def write_adapter(folder: Path, base: Path, *, seed: int) -> Path:
    """Write a LoRA adapter for the model in `base` into `folder`; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    random = np.random.default_rng(seed)
    tensors: Tensors = {}
    for layer in range(LAYERS):
        for name, width in (("q_proj", HIDDEN), ("v_proj", KV_HEADS * HEAD)):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{at}.lora_A.weight"] = _normal(random, RANK, HIDDEN)
            tensors[f"{at}.lora_B.weight"] = _normal(random, width, RANK)
    _write_tensors(folder / "adapter_model.safetensors", tensors)
    return folder


def _weights(vocabulary: int, random: np.random.Generator) -> Iterator[tuple[str, NDArray[np.float32]]]:
    yield "model.embed_tokens.weight", _normal(random, vocabulary, HIDDEN) * HIDDEN**0.5
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", np.ones(HIDDEN, np.float32)
        yield f"{at}.post_attention_layernorm.weight", np.ones(HIDDEN, np.float32)
        yield f"{at}.self_attn.q_proj.weight", _normal(random, HIDDEN, HIDDEN)
        yield f"{at}.self_attn.k_proj.weight", _normal(random, KV_HEADS * HEAD, HIDDEN)
        yield f"{at}.self_attn.v_proj.weight", _normal(random, KV_HEADS * HEAD, HIDDEN)
        yield f"{at}.self_attn.o_proj.weight", _normal(random, HIDDEN, HIDDEN)
        yield f"{at}.mlp.gate_proj.weight", _normal(random, INNER, HIDDEN)
        yield f"{at}.mlp.up_proj.weight", _normal(random, INNER, HIDDEN)
        yield f"{at}.mlp.down_proj.weight", _normal(random, HIDDEN, INNER)
    yield "model.norm.weight", np.ones(HIDDEN, np.float32)
    # Large, so that the likeliest token is so by far: rounding then doesn't change an answer.
    yield "lm_head.weight", _normal(random, vocabulary, HIDDEN) * 4


def _normal(random: np.random.Generator, rows: int, columns: int) -> NDArray[np.float32]:
    return (random.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)


def _write_tensors(path: Path, tensors: Tensors) -> None:
    """In the safetensors format: the length of a JSON header, the header, the numbers."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.tobytes())
