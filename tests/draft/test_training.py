"""Training a head for a tiny model, from the words it writes to the file it is saved in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from specbatch_kernels.cpu import available

from specbatch.draft.head_weights import load_head
from specbatch.draft.training import collect as collecting
from specbatch.draft.training import session as sessions
from specbatch.draft.training.command import run_training
from specbatch.draft.training.dataset import open_dataset
from specbatch.draft.training.documents import Mark
from specbatch.draft.training.settings import TrainSettings, read_settings
from specbatch.draft.training.shards import Shard, ShardFolder
from specbatch.draft.training.trainer import Trainer
from specbatch.errors import ConfigError, InputError, Interrupted, MismatchError, ModelError, UsageError
from specbatch.models.config import ModelConfig
from specbatch.text.tokenizer import Tokenizer
from tests.tiny_models import write_tiny_model

if not available():
    pytest.skip("the compiled kernels are missing", allow_module_level=True)


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
        "tokens": 2500,
        "user_tokens": 8,
        "answer_tokens": 16,
        "seats": 6,
        "threads": 1,
        "steps": 12,
        "batch_tokens": 150,
        "draft_vocab": 96,
        "quantise": "none",
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


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "head.json").read_text())
    return found


@pytest.fixture(scope="module")
def data(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training data that several tests read."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collecting, "DOCUMENTS_PER_SHARD", 8)
        run_training(settings(model, folder), [], collect_only=True)
    return folder / "data"


def test_data_are_the_same_however_they_were_collected(model: Path, data: Path, tmp_path: Path) -> None:
    for tokens in (400, 1200, 2500):
        run_training(settings(model, tmp_path, seats=2, threads=2, tokens=tokens), [], collect_only=True)
    assert len(shards(data)) > 3
    assert same(shards(data), shards(tmp_path / "data"))


def test_another_seed_writes_other_words_and_does_not_mix(model: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="seed"):
        run_training(settings(model, tmp_path, data=data, seed=1), [], collect_only=True)
    run_training(settings(model, tmp_path, tokens=200, seed=1), [], collect_only=True)
    assert not np.array_equal(shards(data)[0].tokens, shards(tmp_path / "data")[0].tokens)


def test_training_lowers_the_loss_and_saves_a_head_that_fits(model: Path, data: Path, tmp_path: Path) -> None:
    run_training(settings(model, tmp_path, data=data, steps=60), ["train-draft", "--steps", "60"])
    found = manifest(tmp_path)
    losses = [loss for _, loss in found["training"]["losses"]]
    assert losses[-1] < 0.7 * losses[0]
    head = load_head(tmp_path / "head.safetensors", ModelConfig.from_directory(model))
    assert head.config.draft_vocab == len(head.target_ids) == 96
    assert not (tmp_path / "head.checkpoint").exists()


def test_a_head_can_be_trained_on(model: Path, data: Path, tmp_path: Path) -> None:
    first, more = tmp_path / "first.safetensors", tmp_path / "more.safetensors"
    run_training(settings(model, tmp_path, data=data, out=first, steps=40), [])
    run_training(settings(model, tmp_path, data=data, out=more, start=first, steps=12, draft_vocab=50), [])
    one, other = (json.loads(path.with_suffix(".json").read_text()) for path in (first, more))
    assert other["training"]["losses"][0][1] < 0.8 * one["training"]["losses"][0][1]
    assert torch.equal(load_file(first)["d2t"], load_file(more)["d2t"])
    assert other["begun_with"]["sha256"] == one["head"]["sha256"]
    assert other["begun_with"]["manifest"] == one
    assert "begun_with" not in one


def test_manifest_says_how_to_do_it_again(model: Path, data: Path, tmp_path: Path) -> None:
    run_training(settings(model, tmp_path, data=data, steps=3), ["train-draft", "--data", "my data"])
    found = manifest(tmp_path)
    assert found["command"] == "specbatch train-draft --data 'my data'"
    assert found["target"]["name"] == str(model)
    recipe = found["data"]["folders"][0]["recipe"]
    assert recipe["answer"] == {"temperatures": [0.0, 0.7], "max_tokens": 16}
    assert found["training"]["steps"] == 3
    assert found["training"]["plans"] == [[0, 3]]
    assert found["evaluation"]["positions"]
    assert len(found["evaluation"]["acceptance"]) == 4
    assert {"specbatch", "torch", "numpy", "python"} == found["versions"].keys()


def test_same_seed_same_head_and_resuming_changes_no_bit(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    run_training(settings(model, whole, data=data), [])
    advance = Trainer.advance

    def killed_at_five(self: Trainer) -> tuple[float, int]:
        if self.step == 5:
            raise Interrupted("killed", UsageError.exit_code)
        return advance(self)

    monkeypatch.setattr(sessions, "CHECKPOINT_S", 0.0)
    monkeypatch.setattr(Trainer, "advance", killed_at_five)
    with pytest.raises(Interrupted):
        run_training(settings(model, parts, data=data), [])
    monkeypatch.setattr(Trainer, "advance", advance)
    with pytest.raises(UsageError, match="exists"):
        run_training(settings(model, parts, data=data), [])
    run_training(settings(model, parts, data=data), [], resume=True)
    one, other = load_file(whole / "head.safetensors"), load_file(parts / "head.safetensors")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert manifest(whole)["training"]["tokens_seen"] == manifest(parts)["training"]["tokens_seen"]


def test_answers_to_given_prompts_are_mixed_with_the_models_own_words(
    model: Path, data: Path, tmp_path: Path
) -> None:
    table, more = tmp_path / "prompts.parquet", tmp_path / "more"
    words = [f"count to {number}" for number in range(60)]
    pq.write_table(pa.table({"prompt": [*words[:30], None, "x " * 600, *words[30:]]}), table)
    run_training(settings(model, tmp_path, data=more, prompts=table, tokens=10**6), [], collect_only=True)
    answered = shards(more)
    assert sum(len(shard.indices) for shard in answered) == 60  # the faulty and the endless one are left out
    said = answered[0].tokens[answered[0].marks == Mark.USER].tolist()
    assert "count to 0" in Tokenizer.load(model).decode(said, skip_special_tokens=False)
    run_training(settings(model, tmp_path, data=data, also=(more,), steps=3), [])
    found = manifest(tmp_path)["data"]
    sources = [folder["recipe"]["source"] for folder in found["folders"]]
    assert sources == ["the target's own conversations", "the target's answers to given prompts"]
    own, given = (folder["documents"] for folder in found["folders"])
    assert given == 60
    assert found["train_documents"] + found["held_out_documents"] > own


def test_other_folders_than_at_the_beginning_are_refused(model: Path, data: Path) -> None:
    with pytest.raises(InputError, match="began with 2 folders"):
        open_dataset([ShardFolder(data, None)], [1, 1])


def test_length_is_found_from_minutes_and_may_be_changed_on_the_way(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "seconds_per_step", lambda _self: 6.0)
    monkeypatch.setattr(sessions, "CHECKPOINT_S", 0.0)
    advance = Trainer.advance
    monkeypatch.setattr(Trainer, "advance", lambda self: _killed() if self.step == 4 else advance(self))
    with pytest.raises(Interrupted):
        run_training(settings(model, tmp_path, data=data, steps=None, minutes=1.0), [])
    monkeypatch.setattr(Trainer, "advance", advance)
    run_training(settings(model, tmp_path, data=data, steps=6), [], resume=True)
    assert manifest(tmp_path)["training"]["plans"] == [[0, 10], [4, 6]]


def _killed() -> tuple[float, int]:
    raise Interrupted("killed", UsageError.exit_code)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"out": None}, UsageError, "--out is missing"),
        ({"data": None}, UsageError, "--data is missing"),
        ({"out": Path("head.bin")}, UsageError, "a head is a .safetensors file"),
        ({"quantise": "q8_0"}, ModelError, "needs a multiple of 32"),
    ],
)
def test_mistakes_are_told_before_any_work(
    model: Path, data: Path, tmp_path: Path, given: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        run_training(settings(model, tmp_path, **{"data": data, **given}), [])
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten_and_nothing_resumed_from_nowhere(
    model: Path, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="no checkpoint"):
        run_training(settings(model, tmp_path, data=data), [], resume=True)
    (tmp_path / "head.json").write_text("{}")
    with pytest.raises(UsageError, match=r"head\.json exists"):
        run_training(settings(model, tmp_path, data=data), [])


def test_a_model_without_a_chat_template_cannot_write_conversations(tmp_path: Path) -> None:
    bare = write_tiny_model(tmp_path / "bare", "mistral")
    with pytest.raises(UsageError, match="no chat template"):
        run_training(settings(bare, tmp_path), [], collect_only=True)


def test_states_are_what_another_pass_over_the_document_gives(model: Path, data: Path) -> None:
    """What was kept while writing equals transformers' hidden states of the finished document."""
    from transformers import AutoModelForCausalLM

    shard = shards(data)[0]
    network = AutoModelForCausalLM.from_pretrained(model)
    start, end = shard.offsets[2:4].tolist()
    tokens = torch.from_numpy(shard.tokens[start:end].astype(np.int64))
    outputs: list[torch.Tensor] = []
    network.model.norm.register_forward_pre_hook(lambda _module, inputs: outputs.append(inputs[0][0]))
    with torch.no_grad():
        hidden = network(tokens.unsqueeze(0), output_hidden_states=True).hidden_states
    places = [hidden[layer][0] for layer in (2, 1, 0)] + outputs
    expected = torch.stack(places, dim=1).numpy()
    np.testing.assert_allclose(shard.states[start:end].astype(np.float32), expected, rtol=2e-3, atol=2e-3)


def test_rows_of_a_past_run_are_documents_too(model: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from specbatch.config import JobConfig
    from specbatch.job.run import run_job

    table = pa.table({"prompt": [f"Count to {n} and back." for n in range(60)] + [""]})
    pq.write_table(table, tmp_path / "jobs.parquet")
    run = tmp_path / "jobs.out"
    job = {"input": (str(tmp_path / "jobs.parquet"),), "out": run, "model": str(model), "max_tokens": 12}
    run_job(JobConfig.model_validate({**job, "token_ids": True, "threads": 1, "policy": "off"}))
    given = settings(model, tmp_path, rows=run, steps=2)
    run_training(given, [])
    answers = pq.read_table(run / "results.parquet").column("token_ids").to_pylist()
    found = shards(tmp_path / "data")
    documents = [
        shard.tokens[start:end][shard.marks[start:end] == 2].tolist()
        for shard in found
        for start, end in zip(shard.offsets[:-1], shard.offsets[1:], strict=True)
    ]
    assert documents == answers[:60]
    with pytest.raises(InputError, match="not the directory of a finished run"):
        run_training(settings(model, tmp_path, rows=tmp_path, out=tmp_path / "b.safetensors"), [])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"steps": "x"}, "--steps x: "),
        ({"learning_rate": "nan"}, "--learning-rate nan: "),
        ({"quantise": "q2"}, "--quantise q2: .*'none', 'q8_0' or 'q4_0'"),
    ],
)
def test_bad_values_are_one_line(flags: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as found:
        read_settings(flags)
    assert "\n" not in found.value.what
