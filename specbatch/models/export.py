"""Writing a model for other tools."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from safetensors.torch import save_file

from specbatch.errors import ModelError
from specbatch.models.config import ModelConfig, read_json
from specbatch.models.files import CONFIG, SIDE_FILES, ModelFiles
from specbatch.models.weights import load_weights


def export_hf(files: ModelFiles, config: ModelConfig, target: Path) -> None:
    """Write a directory that transformers' ``AutoModelForCausalLM`` and ``AutoTokenizer`` load.

    Weights become one ``model.safetensors`` in float32, dequantised exactly. All of them are in
    memory at once. The directory appears complete or not at all.

    Args:
        files: The model.
        config: Its configuration.
        target: Must not exist, or be empty.

    Raises:
        ModelError: The target is taken or cannot be written, or the model is damaged.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelError(f"{target} exists and is not an empty directory", "choose another target")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as work:
            staged = Path(work) / "model"
            staged.mkdir()
            _write(files, config, staged)
            staged.rename(target)
    except OSError as error:
        raise ModelError(f"{target} cannot be written: {error.strerror or error}") from error


def _write(files: ModelFiles, config: ModelConfig, target: Path) -> None:
    weights = {name: tensor.float().contiguous() for name, tensor in load_weights(files, config)}
    file = target / "model.safetensors"
    save_file(weights, file, metadata={"format": "pt"})
    for name in SIDE_FILES:
        source = files.directory / name
        if source.exists() and name != CONFIG:
            shutil.copyfile(source, target / name)
    # Written under both names: "dtype" since transformers 5, "torch_dtype" before.
    settings = read_json(files.directory / CONFIG) | {"dtype": "float32", "torch_dtype": "float32"}
    (target / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    file.chmod((target / CONFIG).stat().st_mode)  # safetensors leaves it readable by its owner alone
