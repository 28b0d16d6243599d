"""The first layers of an embedding model, in 8 bits: enough to tell classes of prompts, for a sixth of the time.

`python -m benchmarks.semantic_match.shortening FOLDER OUT [--layers 1]`: reads `model.onnx`, a BERT whose layers end in
LayerNormalization (exports of opset 17 and above), and writes a folder for `embeddings: {use: onnx, directory: OUT}`.
"""

# onnx and onnxruntime have types for few of their functions.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import argparse
import shutil
from pathlib import Path
from typing import Final

import onnx
from onnx import helper
from onnxruntime.quantization import QuantType, quantize_dynamic

BESIDE: Final = ("tokenizer.json", "config.json", "sentence_bert_config.json")
_OUTPUT: Final = "last_hidden_state"
_NORMS: Final = 2
"""LayerNormalization of each layer; the embeddings have one before them."""


def shorten(folder: Path, out: Path, layers: int) -> None:
    """Write the model's first layers. Raises ValueError when it has fewer, or other ones."""
    whole = onnx.load(str(folder / "model.onnx"))
    norms = [node.output[0] for node in whole.graph.node if node.op_type == "LayerNormalization"]
    if layers < 1 or len(norms) < 1 + _NORMS * layers:
        raise ValueError(f"{folder}: {len(norms)} norms are too few for {layers} layers")
    out.mkdir(parents=True, exist_ok=True)
    end = norms[_NORMS * layers]
    cut = out / "cut.onnx"
    known = {value.name for value in (*whole.graph.value_info, *whole.graph.output)}
    if end not in known:
        width = whole.graph.output[0].type.tensor_type.shape.dim[2].dim_value
        kind = onnx.TensorProto.FLOAT
        whole.graph.value_info.append(helper.make_tensor_value_info(end, kind, ["batch", "sequence", width]))
    short = onnx.utils.Extractor(whole).extract_model([each.name for each in whole.graph.input], [end])
    short.graph.node.append(helper.make_node("Identity", [end], [_OUTPUT]))
    short.graph.output[0].name = _OUTPUT
    onnx.save(short, str(cut))
    quantize_dynamic(str(cut), str(out / "model.onnx"), weight_type=QuantType.QInt8)
    cut.unlink()
    for name in BESIDE:
        if (folder / name).exists():
            shutil.copy(folder / name, out / name)


def main() -> None:
    """Write one folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=1)
    asked = parser.parse_args()
    shorten(asked.folder, asked.out, asked.layers)


if __name__ == "__main__":
    main()
