"""Answers of rounded and of unrounded inputs never get into one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from specbatch.errors import MismatchError
from specbatch.job.state import ROUNDED
from specbatch.models.packed import KERNEL_KINDS

from .fake_engine import FakeEngine, World
from .test_run import PROMPTS, job, manifest, run

KERNELS = {"device": "cpu", "dtype": "float32", "kernels": "compiled-avx2"}


@pytest.mark.parametrize("more", [False, True])
def test_other_settings_are_refused_before_anything_is_changed(tmp_path: Path, more: bool) -> None:
    """Whether the run is finished for this input or not; the message says how it goes on."""
    config = job(tmp_path, activations="float32")
    run(config, World(FakeEngine(numerics=KERNELS)))
    if more:
        config = job(tmp_path, ["more", *PROMPTS], activations="float32")
    for now in ("auto", "int8"):
        other = config.model_copy(update={"activations": now})
        with pytest.raises(MismatchError, match='activations: "float32" there, "int8" now') as caught:
            run(other, World(FakeEngine(numerics=KERNELS)))
        assert "--activations float32" in caught.value.hint
    other = config.model_copy(update={"kernels": "torch", "activations": "auto"})
    with pytest.raises(MismatchError, match='kernels: "compiled" there, "torch" now'):
        run(other, World(FakeEngine(numerics=KERNELS)))
    assert manifest(config)["finished"] is not None
    assert run(config, World(FakeEngine(numerics=KERNELS))).ran is more


def test_formats_whose_inputs_are_rounded_are_those_of_the_kernels() -> None:
    assert set(ROUNDED) == set(KERNEL_KINDS)
