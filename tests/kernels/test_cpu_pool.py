"""The thread pool: counts, errors, closing, pinning, several callers at once."""

from __future__ import annotations

import os
import threading

import pytest
import torch

cpu = pytest.importorskip("specbatch_kernels.cpu")
if not cpu.available():
    pytest.skip(cpu.unavailable_reason(), allow_module_level=True)

from specbatch_kernels.cpu import AttentionKeys, KvCache, ThreadPool, paged_attention  # noqa: E402
from specbatch_kernels.cpu.pool import Isa  # noqa: E402

from tests.kernels.isas import ISAS  # noqa: E402


def problem(tokens: int = 8) -> tuple[torch.Tensor, KvCache, AttentionKeys]:
    generator = torch.Generator().manual_seed(tokens)
    q = torch.randn(tokens, 4, 16, generator=generator)
    cache = KvCache(
        torch.randn(64, 2, 16, generator=generator), torch.randn(64, 2, 16, generator=generator), page_size=8
    )
    keys = AttentionKeys(
        page_table=torch.arange(8, dtype=torch.int32).reshape(1, 8),
        token_row=torch.zeros(tokens, dtype=torch.int32),
        context_len=torch.arange(1, tokens + 1, dtype=torch.int32),
        extra_offsets=torch.zeros(tokens + 1, dtype=torch.int32),
        extra_positions=torch.zeros(0, dtype=torch.int32),
    )
    return q, cache, keys


def attend(pool: ThreadPool, tokens: int = 8) -> torch.Tensor:
    q, cache, keys = problem(tokens)
    out = torch.full_like(q, float("nan"))
    paged_attention(q, cache, keys, 0.25, out, pool)
    return out


@pytest.mark.parametrize("spin_us", [0, 50])
def test_many_short_calls_with_parking_and_without(spin_us: int) -> None:
    with ThreadPool(3, spin_us=spin_us) as pool:
        first = attend(pool)
        for _ in range(300):
            assert torch.equal(attend(pool), first)


def test_two_pools_run_from_two_threads_at_once() -> None:
    expected = attend(ThreadPool(1), 16)
    wrong: list[int] = []

    def work(cores: list[int] | None) -> None:
        with ThreadPool(2, cores=cores) as pool:
            wrong.extend(i for i in range(100) if not torch.equal(attend(pool, 16), expected))

    cores = sorted(os.sched_getaffinity(0))
    threads = [threading.Thread(target=work, args=([c, c],)) for c in (cores[0], cores[-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_callers_of_one_pool_take_turns() -> None:
    expected = attend(ThreadPool(1), 16)
    wrong: list[int] = []
    with ThreadPool(2) as pool:

        def work() -> None:
            wrong.extend(i for i in range(100) if not torch.equal(attend(pool, 16), expected))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert not wrong


def test_pinning_leaves_the_caller_where_it_was() -> None:
    before = os.sched_getaffinity(0)
    with ThreadPool(1, cores=[min(before)]) as pool:
        attend(pool)
    assert os.sched_getaffinity(0) == before


def test_workers_get_a_core_each_when_they_use_the_whole_machine() -> None:
    usable = sorted(os.sched_getaffinity(0))
    assert ThreadPool(len(usable)).cores == tuple(usable)
    assert ThreadPool(len(usable) + 1).cores is None
    assert ThreadPool(len(usable), cores=None).cores is None


@pytest.mark.parametrize("isa", ISAS)
def test_wide_kernels_are_the_narrow_ones_to_whoever_compares_results(isa: Isa) -> None:
    with ThreadPool(1, isa=isa) as pool:
        assert (pool.isa, pool.numerics) == (isa, "portable" if isa == "portable" else "avx2")


def test_pool_refuses_bad_arguments() -> None:
    with pytest.raises(ValueError, match="workers"):
        ThreadPool(0)
    with pytest.raises(ValueError, match="one per worker"):
        ThreadPool(2, cores=[0])
    with pytest.raises(ValueError, match="instruction set"):
        ThreadPool(1, isa="sve")  # type: ignore[arg-type]


def test_closed_pool_refuses_work() -> None:
    pool = ThreadPool(2)
    pool.close()
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        attend(pool)
