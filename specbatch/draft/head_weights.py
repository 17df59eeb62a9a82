"""Draft heads on disk: published EAGLE-3 and 3.1 checkpoints, and our own single file.

Our file is a ``.safetensors`` with the tensor names of the EAGLE checkpoints, whose metadata says
``format = specbatch-head`` and holds the :class:`HeadConfig` and the block format of quantised
matrices (uint8 ``[rows, bytes per row]``, blocks as in a GGUF file).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError  # torch raises it; nothing is unpickled here
from types import MappingProxyType
from typing import Literal

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specbatch.draft.head_config import HeadConfig, default_captured, describe, read_published
from specbatch.errors import ModelError
from specbatch.models.config import ModelConfig
from specbatch.models.gguf_blocks import BlockType, block_type
from specbatch.models.stored import StoredTensor, quantize

__all__ = ["HeadConfig", "HeadWeights", "Quantisation", "default_captured", "load_head", "save_head"]

Quantisation = Literal["none", "q8_0", "q4_0"]

EMBEDDING = "embed_tokens.weight"
_FORMAT, _VERSION = "specbatch-head", "1"
_BLOCKS: Mapping[str, BlockType] = MappingProxyType({block_type(c).name: block_type(c) for c in (2, 3, 8)})
_IGNORED = ("t2d", "rotary_emb.inv_freq", "midlayer.self_attn.rotary_emb.inv_freq")


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """A draft head.

    Attributes:
        config: Shape and constants.
        tensors: EAGLE name → tensor, exactly those of ``config.shapes``.
        target_ids: Target token of each draft token, int64 ``[draft_vocab]``, all different.
        embedding: The head's own token embedding ``[target vocabulary, hidden]``; ``None`` when it
            uses the target's.
    """

    config: HeadConfig
    tensors: Mapping[str, StoredTensor]
    target_ids: Tensor
    embedding: StoredTensor | None = None

    def values(self, name: str) -> Tensor:
        """Plain float32 values of a tensor, contiguous."""
        return self.tensors[name].values().to(torch.float32).contiguous()


def load_head(path: Path, target: ModelConfig) -> HeadWeights:
    """Load a head for a target.

    Args:
        path: Our file, or the directory of a published checkpoint (``config.json`` with
            ``model.safetensors`` or ``pytorch_model.bin``), or a directory that holds our file.
        target: The model it is to draft for.

    Raises:
        ModelError: Nothing usable is there, or the head does not fit the target; says why.
    """
    file = _weights_file(path)
    metadata = _metadata(file)
    if metadata.get("format") == _FORMAT:
        config, blocks = _own_config(file, metadata)
        raw = {name: StoredTensor(tensor, blocks.get(name)) for name, tensor in _read(file).items()}
    elif not (file.parent / "config.json").is_file():
        raise ModelError(
            f"{file} is no draft head of specbatch, and no config.json of a published one is beside it",
            "give a file that train-draft has written, or the directory of a published head",
        )
    else:
        config = read_published(file.parent, target)
        raw = {_eagle_name(name): StoredTensor(tensor) for name, tensor in _read(file).items()}
    config.check(target, path)
    target_ids = _target_ids(raw.pop("d2t", None), config, target, path)
    embedding = raw.pop(EMBEDDING, None)
    if embedding is not None and embedding.shape != (target.vocab_size, config.hidden):
        raise ModelError(
            f"the draft head {path} embeds {list(embedding.shape)} tokens, "
            f"the model's embedding is {[target.vocab_size, config.hidden]}",
            "the head belongs to a model with another tokenizer",
        )
    _check_tensors(raw, config, path)
    return HeadWeights(config, {name: raw[name] for name in config.shapes}, target_ids, embedding)


def save_head(weights: HeadWeights, path: Path, quantise: Quantisation) -> None:
    """Write our file, in full or not at all.

    Args:
        weights: The head; its target's digest is kept as it is.
        path: Ends in ``.safetensors``.
        quantise: Block format for the matrices that are plain values; norms stay float32.

    Raises:
        ModelError: A matrix is not made of whole blocks.
    """
    stored = {name: _stored(name, tensor, quantise) for name, tensor in weights.tensors.items()}
    if weights.embedding is not None:
        stored[EMBEDDING] = _stored(EMBEDDING, weights.embedding, quantise)
    tensors = {name: tensor.data.contiguous() for name, tensor in stored.items()}
    draft_ids = torch.arange(weights.config.draft_vocab)
    tensors["d2t"] = (weights.target_ids - draft_ids).to(torch.int32)
    metadata = {
        "format": _FORMAT,
        "version": _VERSION,
        "config": json.dumps({**asdict(weights.config), "captured": list(weights.config.captured)}),
        "blocks": json.dumps({name: t.kind.name for name, t in stored.items() if t.kind is not None}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".head.", dir=path.parent) as work:
        staged = Path(work) / path.name
        save_file(tensors, staged, metadata)
        staged.replace(path)


def read_head_config(path: Path) -> HeadConfig:
    """Configuration of our own file without its weights.

    Raises:
        ModelError: It is not such a file.
    """
    metadata = _metadata(path)
    if metadata.get("format") != _FORMAT:
        raise ModelError(f"{path} is not a draft head of specbatch")
    return _own_config(path, metadata)[0]


def _stored(name: str, tensor: StoredTensor, quantise: Quantisation) -> StoredTensor:
    """The tensor as it goes to disk; matrices that are blocks already stay what they are."""
    if tensor.kind is not None:
        return tensor
    plain = StoredTensor(tensor.data.detach().to("cpu", torch.float32))
    return plain if quantise == "none" else quantize(f"draft.{name}", plain, quantise)


def _weights_file(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise ModelError(
            f"there is no draft head at {path}", "give a .safetensors file or a checkpoint directory"
        )
    bins = path / "pytorch_model.bin"
    found = sorted(path.glob("*.safetensors")) or ([bins] if bins.exists() else [])
    if len(found) != 1:
        raise ModelError(
            f"{path} holds {len(found)} weight files, a draft head is one",
            "expected model.safetensors or pytorch_model.bin beside config.json",
        )
    return found[0]


def _metadata(file: Path) -> dict[str, str]:
    """Of a safetensors file; empty for other files."""
    if file.suffix != ".safetensors":
        return {}
    try:
        with safe_open(file, framework="pt") as opened:
            return dict(opened.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise ModelError(f"the draft head {file} is damaged: {error}", "fetch the file again") from error


def _read(file: Path) -> dict[str, Tensor]:
    """All tensors of a file; of a pickle only tensors are accepted."""
    try:
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as opened:
                return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, ValueError, UnpicklingError) as error:
        what = str(error).splitlines()[0]
        raise ModelError(f"the draft head {file} is damaged: {what}", "fetch the file again") from error
    return {str(name): tensor for name, tensor in loaded.items()}


def _own_config(file: Path, metadata: Mapping[str, str]) -> tuple[HeadConfig, dict[str, BlockType]]:
    if metadata.get("version") != _VERSION:
        raise ModelError(
            f"{file} has version {metadata.get('version')} of the draft head format, {_VERSION} is supported",
            "train it again or update specbatch",
        )
    try:
        config = TypeAdapter(HeadConfig).validate_json(metadata["config"])
        names = json.loads(metadata["blocks"])
        return config, {name: _BLOCKS[kind] for name, kind in names.items()}
    except ValidationError as error:
        what = describe(error)
    except (KeyError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
    raise ModelError(f"metadata of the draft head {file} is damaged: {what}", "fetch the file again")


def _eagle_name(name: str) -> str:
    """The EAGLE authors' name of a tensor of the other published layouts."""
    name = name.removeprefix("model.")
    if name.startswith("layers.0."):
        name = f"midlayer.{name.removeprefix('layers.0.')}"
    if name.startswith("fc_norm."):
        name = f"feature_norms.{name.removeprefix('fc_norm.')}"
    return name


def _target_ids(d2t: StoredTensor | None, config: HeadConfig, target: ModelConfig, path: Path) -> Tensor:
    """Target token of each draft token; without ``d2t`` the vocabularies are the same."""
    draft_ids = torch.arange(config.draft_vocab)
    if d2t is None and config.draft_vocab == target.vocab_size:
        return draft_ids
    if d2t is None or d2t.shape != (config.draft_vocab,):
        found = "no d2t" if d2t is None else f"a d2t of shape {list(d2t.shape)}"
        raise ModelError(f"the draft head {path} has {found} for {config.draft_vocab} draft tokens")
    ids = draft_ids + d2t.data.to(torch.int64)
    if int(ids.min()) < 0 or int(ids.max()) >= target.vocab_size or len(set(ids.tolist())) < len(ids):
        raise ModelError(
            f"d2t of the draft head {path} leaves the model's {target.vocab_size} tokens or repeats one",
            "the head belongs to a model with another tokenizer",
        )
    return ids


def _check_tensors(found: Mapping[str, StoredTensor], config: HeadConfig, path: Path) -> None:
    """Compare what is there with what the configuration asks for."""
    expected = config.shapes
    missing = [name for name in expected if name not in found]
    unknown = [name for name in found if name not in expected and name not in _IGNORED]
    wrong = [
        f"{name} is {list(found[name].shape)}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name].shape != shape
    ]
    for problem, names in (("lacks", missing), ("holds unknown", unknown), ("holds misshapen", wrong)):
        if names:
            raise ModelError(
                f"the draft head {path} {problem} tensors: {', '.join(names[:4])}"
                + (f" and {len(names) - 4} more" if len(names) > 4 else ""),
                "an EAGLE-3 head of one layer without biases is supported",
            )
