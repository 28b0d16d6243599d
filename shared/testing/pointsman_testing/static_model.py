"""A static embedding model in a folder, as people deploy them for their speed: a vector for each token, without a
network behind it. As Tulkens and van Dongen make them ("Model2Vec", 2024): the vectors that all-MiniLM-L6-v2 gives each
token alone, reduced to their principal components, and weighted by how rare the token is.
"""

# onnx has types for few of its functions.
# pyright: reportUnknownMemberType=false

import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

START, END = 101, 102
"""BERT's tokens around each text."""
_BATCH: Final = 256
_PLACES: Final = 128
"""Best of 128, 256 and 384 when each topic of the model-selector's examples was classified by the other topics."""
_RARE: Final = 1e-3


def static_model(minilm: Path, parent: Path) -> Path:
    """The model's folder below `parent`, made of the folder of `minilm`. Takes a minute or two; written unless it is
    there already."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    folder = parent / f"static-{minilm.name}"
    if (folder / "model.onnx").exists():
        return folder
    folder.mkdir(exist_ok=True)
    table = _vectors(minilm)
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"], axis=0)]
    wants = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])]
    gives = [
        helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "sequence", table.shape[1]])
    ]
    graph = helper.make_graph(nodes, "static", wants, gives, [numpy_helper.from_array(table, "table")])
    shutil.copy(minilm / "tokenizer.json", folder)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 4096}')
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(folder / "model.onnx")
    )
    return folder


def _vectors(minilm: Path) -> NDArray[np.float32]:
    """The vector of each token of the vocabulary, less their mean; zeros for the tokens around a text."""
    import onnxruntime
    from tokenizers import Tokenizer

    session: Any = onnxruntime.InferenceSession(str(minilm / "model.onnx"), providers=["CPUExecutionProvider"])
    count = Tokenizer.from_file(str(minilm / "tokenizer.json")).get_vocab_size()
    rows: list[NDArray[np.float32]] = []
    for first in range(0, count, _BATCH):
        ids = np.array([[START, token, END] for token in range(first, min(first + _BATCH, count))], np.int64)
        kinds = np.zeros_like(ids)
        hidden = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": kinds})[0]
        rows.append(np.asarray(hidden, np.float32).mean(axis=1))
    table = np.concatenate(rows)
    table -= table.mean(axis=0)
    _, directions = np.linalg.eigh(table.T @ table)
    # The vocabulary is in the order of how frequent its tokens are: Zipf's law. The weight is that of Arora et al., "A
    # simple but tough-to-beat baseline for sentence embeddings" (2017).
    shares = 1.0 / np.arange(1, count + 1)
    weights = _RARE / (_RARE + shares / shares.sum())
    table = (table @ directions[:, -_PLACES:]) * weights[:, None]
    table[[START, END]] = 0.0
    return table.astype(np.float32)
