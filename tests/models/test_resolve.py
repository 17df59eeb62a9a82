"""From a name to files: aliases, directories, GGUF files, the Hugging Face cache, and clear refusals."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants
import pytest

from specbatch.errors import ModelError
from specbatch.models.files import file_digest, weights_digest
from specbatch.models.resolve import bytes_on_disk, find_side_files, refresh_model, resolve_model
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_models import write_tiny_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECBATCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache on a machine without network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def resolve(spec: Path | str) -> object:
    return resolve_model(str(spec), allow_download=False, report=lambda _: None)


def cached(hub: Path, family: str) -> Path:
    """A snapshot as the Hugging Face client leaves it."""
    repository = hub / "models--someone--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("a" * 40)
    return write_tiny_model(repository / "snapshots" / ("a" * 40), family)


def test_directory_of_safetensors(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "hf", "mistral")
    files = resolve_model(str(directory), report=lambda _: None)
    weights = directory / "model.safetensors"
    assert (files.name, files.directory, files.weights) == (str(directory), directory, (weights,))
    assert (files.format, files.quantization) == ("safetensors", "none")
    assert files.digest == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert files.num_bytes == weights.stat().st_size


def test_digest_is_remembered_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    first = weights_digest([path])
    hashed: list[Path] = []

    def counting(file: Path) -> str:
        hashed.append(file)
        return file_digest(file)

    monkeypatch.setattr("specbatch.models.files.file_digest", counting)
    assert weights_digest([path]) == first
    assert hashed == []
    stat = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert weights_digest([path]) == hashlib.sha256(b"two").hexdigest()
    assert hashed == [path]


def test_damaged_digest_memory_is_hashed_again(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    first = weights_digest([path])
    for content in ("", "[]", '{"sha256": 3}', '{"stamp": [], "sha256": "0"}'):
        for memo in (cache / "digests").iterdir():
            memo.write_text(content)
        assert weights_digest([path]) == first


def test_side_digest_sees_template_and_tokenizer_but_not_weights(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "hf", "llama")
    before = resolve_model(str(directory), report=lambda _: None)
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}")
    after = resolve_model(str(directory), report=lambda _: None)
    assert before.digest == after.digest
    assert before.side_digest != after.side_digest


@pytest.mark.parametrize(
    ("spec", "what", "hint"),
    [
        ("smollm2-136m", "no model 'smollm2-136m'", "did you mean smollm2-135m"),
        ("gpt-5", "no model 'gpt-5'", "aliases: smollm2-135m"),
        ("./missing", "no model", "aliases"),
        ("missing.gguf", "no file missing.gguf", ""),
        ("smollm2-135m", "not on this machine", "specbatch model pull smollm2-135m"),
    ],
)
def test_missing_models_are_one_clear_line(spec: str, what: str, hint: str) -> None:
    with pytest.raises(ModelError, match=what) as caught:
        resolve(spec)
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_incomplete_directories_name_what_is_missing(tmp_path: Path, name: str) -> None:
    directory = write_tiny_model(tmp_path / "hf", "llama")
    (directory / name).unlink()
    with pytest.raises(ModelError, match=r"has no (config\.json|tokenizer\.json|\*\.safetensors)"):
        resolve(directory)


SIDE = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


@pytest.mark.parametrize("name", [*SIDE, "chat_template.jinja"])
def test_side_files_that_are_empty_or_cut_short_are_named(tmp_path: Path, name: str) -> None:
    directory = write_tiny_model(tmp_path / "hf", "llama")
    whole = (directory / name).read_bytes()
    for content in (b"", b"\n", whole[: len(whole) // 2]):
        if name.endswith(".jinja") and content.strip():
            continue  # where a template ends, nobody knows
        (directory / name).write_bytes(content)
        for find in (resolve, lambda spec: find_side_files(str(spec))):
            with pytest.raises(ModelError, match=f"{name} is empty or cut short") as caught:
                find(directory)
            assert caught.value.hint == "write or copy the model again"
    (directory / name).write_bytes(whole + b"\n")
    resolve(directory)


def test_a_converted_side_file_that_is_cut_short_is_made_again_by_force(tmp_path: Path) -> None:
    gguf = write_tiny_gguf(tmp_path / "tiny.gguf", write_tiny_model(tmp_path / "hf", "llama"))
    files = resolve_model(str(gguf), report=lambda _: None)
    for name in ("tokenizer.json", "manifest.json"):
        path = files.directory / name
        path.write_bytes(path.read_bytes()[:5])
        with pytest.raises(ModelError, match=f"{name} is empty or cut short") as caught:
            resolve(gguf)
        assert caught.value.hint == f"run: specbatch model pull {gguf} --force"
        assert refresh_model(str(gguf), force=True, report=lambda _: None) == files


def test_a_directory_of_one_gguf_file_means_that_file(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    gguf = write_tiny_gguf(folder / "b.gguf", write_tiny_model(tmp_path / "hf", "llama"))
    assert find_side_files(str(folder)) is None, "not converted yet"
    files = resolve_model(str(folder), report=lambda _: None)
    assert files == resolve_model(str(gguf), report=lambda _: None)
    assert files.weights == (gguf,)
    assert find_side_files(str(folder)) == files.directory
    assert bytes_on_disk(str(folder)) == gguf.stat().st_size
    assert refresh_model(str(folder), force=True, report=lambda _: None) == files
    (folder / "a.gguf").write_bytes(b"")
    for find in (resolve, lambda spec: find_side_files(str(spec))):
        with pytest.raises(ModelError, match=r"holds several \.gguf files: a\.gguf, b\.gguf") as caught:
            find(folder)
        assert caught.value.hint == f"name one: --model {folder / 'a.gguf'}"
    for file in (tmp_path / "hf").iterdir():
        file.rename(folder / file.name)
    assert resolve_model(str(folder), report=lambda _: None).format == "safetensors"


def test_what_the_hub_has_is_fetched_again_by_force(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = cached(hub, "qwen2")
    whole = (directory / "tokenizer.json").read_bytes()
    (directory / "tokenizer.json").write_bytes(whole[:100])
    with pytest.raises(ModelError, match="cut short") as caught:
        resolve("someone/tiny")
    assert caught.value.hint == "run: specbatch model pull someone/tiny --force"

    def fetch(name: str, *, force_download: bool, **_: object) -> str:
        assert (name, force_download) == ("someone/tiny", True)
        (directory / "tokenizer.json").write_bytes(whole)
        return str(directory)

    monkeypatch.setattr("specbatch.models.hub.snapshot_download", fetch)
    assert refresh_model("someone/tiny", force=True, report=lambda _: None).directory == directory


def test_several_weight_files_need_an_index(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "hf", "llama")
    (directory / "model.safetensors").rename(directory / "a.safetensors")
    assert len(resolve_model(str(directory), report=lambda _: None).weights) == 1
    (directory / "b.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"several \*\.safetensors"):
        resolve(directory)


def test_hugging_face_cache_is_used_without_network(hub: Path) -> None:
    directory = cached(hub, "qwen2")
    files = resolve_model("someone/tiny", allow_download=False, report=lambda _: None)
    assert (files.name, files.directory) == ("someone/tiny", directory)


def test_partly_fetched_snapshot_is_completed_or_named(hub: Path) -> None:
    (cached(hub, "qwen2") / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no \*\.safetensors"):
        resolve("someone/tiny")
    with pytest.raises(ModelError, match=r"someone--tiny.* has no \*\.safetensors"):
        resolve_model("someone/tiny", report=lambda _: None)


def test_offline_hub_is_one_clear_line(hub: Path) -> None:
    with pytest.raises(ModelError, match="someone/else is not on this machine") as caught:
        resolve("someone/else")
    assert "specbatch model pull someone/else" in caught.value.hint
    for refused in (resolve_model, refresh_model):
        with pytest.raises(ModelError, match="someone/else") as caught:
            refused("someone/else", report=lambda _: None)
        assert "\n" not in caught.value.what


def test_finding_a_model_imports_no_heavy_library(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "hf", "llama")
    script = (
        "import sys\n"
        "from specbatch.models.resolve import resolve_model\n"
        "from specbatch.models.config import ModelConfig\n"
        f"ModelConfig.from_directory(resolve_model({str(directory)!r}, report=print).directory)\n"
        "print({'torch', 'transformers', 'huggingface_hub', 'gguf', 'tokenizers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
