"""The K/V store: its memory is taken as it is used, and what there is not is told."""

from __future__ import annotations

import resource

import pytest
import torch

from specbatch.cache import KVStore

CPU = torch.device("cpu")


def peak_bytes() -> int:
    """Most memory that this process ever held."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_a_store_is_zeros_and_takes_memory_only_where_it_is_written() -> None:
    before = peak_bytes()
    store = KVStore.zeros((30, 4096, 4, 64), 16, torch.float32, CPU)  # 4 GB
    slots = torch.tensor([5, 16])
    store.write(29, slots, torch.ones(2, 4, 64), torch.full((2, 4, 64), 2.0))
    assert store.keys[29, :6].sum() == 4 * 64
    assert store.values[29, 16].sum() == 2 * 4 * 64
    store.move([5], [17])
    assert store.keys[29, 17].sum() == 4 * 64
    assert peak_bytes() - before < 100 << 20


def test_memory_that_is_not_there_is_said_in_bytes() -> None:
    with pytest.raises(MemoryError, match=r"144,115,188,075,855,872 bytes for keys and values"):
        KVStore.zeros((1 << 9, 1 << 20, 1 << 9, 1 << 8), 512, torch.float32, CPU)
