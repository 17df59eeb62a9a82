"""Builds the optional CPU kernels; everything else about the package is in pyproject.toml.

Without a C compiler, or on a platform the kernels were not written for, the package installs
without them and ``specbatch_kernels.cpu.available()`` says so.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("kernels/specbatch_kernels/cpu/csrc")
FLAGS = ["-std=c11", "-O3", "-g0", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-Wno-psabi"]
# Tests of the kernels under AddressSanitizer:
#   SPECBATCH_SANITIZE=address python setup.py build_ext --inplace --force
#   LD_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 python -m pytest tests/kernels
#   python setup.py build_ext --inplace --force
SANITIZE = os.environ.get("SPECBATCH_SANITIZE")
SANITIZE_FLAGS = [f"-fsanitize={SANITIZE}", "-g", "-fno-omit-frame-pointer"] if SANITIZE else []

CPU_KERNELS = Extension(
    "specbatch_kernels.cpu._native",
    sources=sorted(str(path) for path in SOURCES.glob("*.c")),
    depends=sorted(str(path) for path in SOURCES.glob("*.h")),
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    extra_compile_args=[*FLAGS, "-pthread", *SANITIZE_FLAGS],
    extra_link_args=["-pthread", *SANITIZE_FLAGS],
    py_limited_api=True,
    optional=True,
)

setup(
    ext_modules=[] if sys.platform == "win32" else [CPU_KERNELS],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
