"""Before any test imports torch: threads wait politely, as in the command line tool; and for all tests:
how many examples a property gets, and how many threads an engine takes that nobody told.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from specbatch.hardware import threads

threads.prepare_environment(os.environ)

# Examples may take as long as they like: the machine may be busy.
settings.register_profile("suite", max_examples=50, deadline=None)
settings.load_profile("suite")

if "PYTEST_XDIST_WORKER" in os.environ:
    # Several test processes share the machine: one that is not told otherwise works with one thread.
    os.environ["OMP_NUM_THREADS"] = "1"
    threads.usable_cores = lambda: 1

LONGEST = (
    "test_exactness.py",
    "test_exact_speculation.py",
    "test_speculation_kernels.py",
    "test_sampling_law.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several processes, the longest files first: none of them is begun when the others are done."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(
            key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST)
        )
