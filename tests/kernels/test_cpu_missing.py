"""An installation without the compiled part: it says so, and the twins work."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["specbatch_kernels.cpu._native"] = None
import torch
from specbatch_kernels import cpu

assert not cpu.available()
assert "not compiled" in cpu.unavailable_reason()
for call in (lambda: cpu.ThreadPool(1), lambda: cpu.pack(torch.ones(2, 2), "f32")):
    try:
        call()
    except cpu.KernelsUnavailableError as error:
        assert "C compiler" in str(error)
    else:
        raise AssertionError("no error")
out = torch.empty(2, 3)
cpu.rms_norm_reference(torch.ones(2, 3), cpu.RmsNorm(torch.ones(3), 0.0), out, None)
assert torch.equal(out, torch.ones(2, 3))
"""


def test_package_without_extension_says_so_and_twins_work() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
