"""Training a head for a tiny model, from the words it writes to the file it is saved in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("specbatch_kernels.cpu")
from specbatch_kernels.cpu import available

if not available():
    pytest.skip("the compiled kernels are missing", allow_module_level=True)

from specbatch.draft.head_weights import load_head  # noqa: E402
from specbatch.draft.training import collect as collecting  # noqa: E402
from specbatch.draft.training.command import run_training  # noqa: E402
from specbatch.draft.training.settings import TrainSettings  # noqa: E402
from specbatch.draft.training.shards import Shard, ShardFolder  # noqa: E402
from specbatch.errors import InputError, MismatchError, UsageError  # noqa: E402
from specbatch.models.config import ModelConfig  # noqa: E402
from tests.tiny_models import write_tiny_model  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "DOCUMENTS_PER_SHARD", 8)


def settings(model: Path, folder: Path, **given: object) -> TrainSettings:
    small = {
        "model": str(model),
        "data": folder / "data",
        "out": folder / "head.safetensors",
        "tokens": 3000,
        "user_tokens": 8,
        "answer_tokens": 24,
        "seats": 5,
        "threads": 1,
        "steps": 12,
        "batch_tokens": 200,
        "draft_vocab": 96,
    }
    return TrainSettings.model_validate({**small, **given})


def shards(path: Path) -> list[Shard]:
    folder = ShardFolder(path, None)
    return [folder.read(number) for number in range(len(folder))]


def same(one: list[Shard], other: list[Shard]) -> bool:
    names = ("tokens", "marks", "offsets", "indices", "states")
    return len(one) == len(other) and all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for a, b in zip(one, other, strict=True)
        for name in names
    )


def test_data_are_the_same_however_they_were_collected(model: Path, tmp_path: Path) -> None:
    whole = settings(model, tmp_path, data=tmp_path / "whole")
    run_training(whole, [], collect_only=True)
    parts = settings(model, tmp_path, data=tmp_path / "parts", seats=2, threads=2)
    for tokens in (500, 1500, 3000):
        run_training(parts.model_copy(update={"tokens": tokens}), [], collect_only=True)
    assert len(shards(tmp_path / "whole")) > 3
    assert same(shards(tmp_path / "whole"), shards(tmp_path / "parts"))


def test_another_seed_writes_other_words_and_does_not_mix(model: Path, tmp_path: Path) -> None:
    run_training(settings(model, tmp_path), [], collect_only=True)
    with pytest.raises(MismatchError, match="seed"):
        run_training(settings(model, tmp_path, seed=1), [], collect_only=True)
    run_training(settings(model, tmp_path, seed=1, data=tmp_path / "other"), [], collect_only=True)
    assert not same(shards(tmp_path / "data"), shards(tmp_path / "other"))
