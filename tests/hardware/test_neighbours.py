"""Other processes' share of the machine, from the kernel's counters."""

from __future__ import annotations

import time
from pathlib import Path

from specbatch.hardware.neighbours import Neighbours
from specbatch.hardware.threads import usable_core_numbers, usable_cores


def stat(path: Path, user: int, idle: int) -> Path:
    first, *rest = usable_core_numbers()
    busy = f"cpu{first} {user} 0 5 {idle} 70 0 0 3 900 0"
    others = "".join(f"cpu{core} 1 1 1 1 1 1 1 1 1 1\n" for core in rest)
    path.write_text(
        f"cpu  9 9 9 9 9 9 9 9 9 9\n{busy}\n{others}cpu99999 {user**2} 0 0 0 0 0 0 0 0 0\nintr 5\n"
    )
    return path


def test_work_of_others_is_what_the_kernel_counts_less_our_own(tmp_path: Path) -> None:
    path, began, own = stat(tmp_path / "stat", 100, 1000), time.perf_counter(), time.process_time()
    watch = Neighbours(path, tick_s=0.01)
    first, mine = time.perf_counter(), time.process_time()
    while time.perf_counter() - first < 0.4:
        time.sleep(0.05)
    stat(path, 130, 5000)
    shortest, least = time.perf_counter() - first, time.process_time() - mine
    share = watch.share()
    longest, most = time.perf_counter() - began, time.process_time() - own
    assert share is not None
    cores = usable_cores()
    assert (0.30 - most) / (longest * cores) <= share <= (0.30 - least) / (shortest * cores)


def test_our_own_work_is_no_disturbance(tmp_path: Path) -> None:
    path = stat(tmp_path / "stat", 100, 1000)
    watch = Neighbours(path, tick_s=0.01)
    assert watch.share() == 0.0


def test_a_system_without_counters_knows_nothing(tmp_path: Path) -> None:
    assert Neighbours(tmp_path / "none").share() is None
