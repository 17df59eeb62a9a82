"""Modules that load when they are touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.startup import UNTOUCHED, deferring, load_deferred, torch_meanwhile
from tests.tiny_models import write_tiny_model


@pytest.fixture
def noisy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a module that says on stdout when it runs."""
    package = tmp_path / "noisy_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inner.py").write_text("print('ran')\nvalue = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("noisy_package", "noisy_package.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "noisy_package.inner"


def test_a_deferred_module_runs_at_the_first_look_and_once(
    noisy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with deferring(noisy):
        import noisy_package.inner  # type: ignore[import-not-found]
    module = sys.modules[noisy]
    assert (module.__name__, Path(str(module.__file__)).name, capsys.readouterr().out) == (
        noisy,
        "inner.py",
        "",
    )
    assert (noisy_package.inner.value, capsys.readouterr().out) == (7, "ran\n")
    assert (noisy_package.inner.value, capsys.readouterr().out) == (7, "")
    with pytest.raises(AttributeError, match="missing"):
        _ = module.missing


def test_what_is_deferred_can_be_loaded_without_a_look(
    noisy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with deferring(noisy):
        __import__(noisy)
    load_deferred(noisy, "noisy_package", "never_imported")
    assert (capsys.readouterr().out, sys.modules[noisy].value) == ("ran\n", 7)
    load_deferred(noisy)
    assert capsys.readouterr().out == ""


def test_other_modules_run_as_always(noisy: str, capsys: pytest.CaptureFixture[str]) -> None:
    with deferring("noisy_package.other"):
        __import__(noisy)
    assert capsys.readouterr().out == "ran\n"
    assert not [each for each in sys.meta_path if "Deferring" in type(each).__name__]


def test_torch_works_without_what_is_deferred_and_loads_it_when_asked() -> None:
    script = (
        "import sys\n"
        "from specbatch.startup import UNTOUCHED, deferring\n"
        "with deferring(*UNTOUCHED):\n"
        "    import specbatch.engine.open, torch\n"
        "assert 'torch._prims' not in sys.modules\n"
        "assert torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3)).sum() == 24\n"
        "for name in UNTOUCHED:\n"
        "    assert sys.modules[name].register_meta\n"
        "assert 'torch._prims' in sys.modules\n"
        "assert torch.empty(2, 3, device='meta').view(6).shape == (6,)\n"
    )
    assert UNTOUCHED
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_library_of_torch_is_loaded_beside_other_work_and_found_by_torch() -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from specbatch.startup import torch_meanwhile\n"
        "with torch_meanwhile():\n"
        "    done = sum(range(1000))\n"
        "assert 'torch' not in sys.modules\n"
        "maps = Path('/proc/self/maps')\n"
        "assert not maps.exists() or 'libtorch_cpu.so' in maps.read_text()\n"
        "import torch\n"
        "assert torch.ones(2).sum() == 2\n"
        "with torch_meanwhile():\n"
        "    pass\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_rooms_that_are_entered_before_torch_is_there_do_without_it() -> None:
    script = (
        "import sys\n"
        "from importlib import import_module\n"
        "from specbatch.job.surroundings import WITHOUT_TORCH\n"
        "assert [import_module(name) for name in WITHOUT_TORCH]\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_is_imported_for_torch_it_imports() -> None:
    script = (
        "import sys\n"
        "from specbatch.job.surroundings import FOR_TORCH\n"
        "import torch\n"
        "assert not set(FOR_TORCH) - set(sys.modules), set(FOR_TORCH) - set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_no_library_is_loaded_beside_that_of_torch() -> None:
    script = (
        "import sys\n"
        "from importlib import import_module\n"
        "from pathlib import Path\n"
        "from specbatch.job.surroundings import FOR_TORCH, WITH_LIBRARIES, WITHOUT_TORCH\n"
        "import specbatch.job.run, specbatch.engine.encoder\n"
        "from specbatch.text.tokenizer import first_call\n"
        "def libraries():\n"
        "    maps = Path('/proc/self/maps').read_text()\n"
        "    return {line.split()[-1] for line in maps.splitlines() if '.so' in line}\n"
        "first_call()\n"
        "for name in WITH_LIBRARIES: import_module(name)\n"
        "before = libraries()\n"
        "for name in (*WITHOUT_TORCH, *FOR_TORCH): import_module(name)\n"
        "assert libraries() == before, libraries() - before\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_without_torch_nothing_is_loaded_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr("specbatch.startup.find_spec", lambda _: None)
    monkeypatch.setattr("specbatch.startup.Thread", None)
    with torch_meanwhile():
        pass


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_a_run_starts_with_all_kernels(tmp_path: Path, kernels: str) -> None:
    """In a process of its own: what another test has imported is no help."""
    write_tiny_model(tmp_path / "model", "llama")
    pq.write_table(pa.table({"prompt": ["one", "two"]}), tmp_path / "in.parquet")
    flags = ("--kernels", kernels, "--kv-memory", "4MiB", "--threads", "1", "--max-tokens", "4")
    where = ("--model", str(tmp_path / "model"), "--out", str(tmp_path / "out"))
    command = [sys.executable, "-m", "specbatch", "run", str(tmp_path / "in.parquet"), *where, *flags]
    done = subprocess.run(
        [*command, "--policy", "off"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
