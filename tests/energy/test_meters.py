"""Meters count what they say, each joule once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbatch.energy.find import look_at_meters, open_meter
from specbatch.energy.integral import PowerIntegral
from specbatch.energy.meter import AssumedWatts, EnergyMeter, NoMeter
from specbatch.energy.rapl import find_rapl
from specbatch.errors import MeterFault
from tests.energy.fakes import RANGE_UJ, Board, FakeNvml, show, zone


def opened(meter: EnergyMeter | NoMeter) -> EnergyMeter:
    assert not isinstance(meter, NoMeter), meter.reason
    return meter


def refused(meter: EnergyMeter | NoMeter) -> NoMeter:
    assert isinstance(meter, NoMeter)
    return meter


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    boards = [Board("GPU-a"), Board("GPU-b", energy_mj=9_000), Board("GPU-c", energy_mj=None)]
    fake = FakeNvml([*boards, Board("MIG-b1", parent=boards[1])])
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_packages_and_memory_are_added_and_nothing_twice(tmp_path: Path) -> None:
    names = {
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "uncore",
        "intel-rapl:0:2": "dram",
        "intel-rapl:1": "package-1",
        "intel-rapl:1:0": "dram",
        "intel-rapl:2": "psys",
        "intel-rapl-mmio:0": "package-0",
    }
    folders = {place: zone(tmp_path, place, name) for place, name in names.items()}
    (tmp_path / "intel-rapl").mkdir()
    meter = opened(find_rapl(tmp_path))
    assert meter.joules() == 0.0
    for number, folder in enumerate(folders.values()):
        show(folder, 1000 + 10**6 * 10**number)
    assert meter.joules() == pytest.approx(1 + 1000 + 10_000 + 100_000)
    assert meter.method == "rapl"
    assert "package-0, dram, package-1, dram: all of it, other processes included" in meter.scope


@given(st.integers(0, RANGE_UJ - 1), st.lists(st.integers(0, RANGE_UJ - 1), max_size=6))
def test_counters_that_wrap_around_lose_nothing(
    tmp_path_factory: pytest.TempPathFactory, start: int, spent: list[int]
) -> None:
    folder = zone(tmp_path_factory.mktemp("powercap"), "intel-rapl:0", "package-0", start)
    meter, counter = opened(find_rapl(folder.parent)), start
    assert "memory has no counter here" in meter.scope
    for number, amount in enumerate(spent, start=1):
        counter = (counter + amount) % RANGE_UJ
        show(folder, counter)
        assert meter.joules() == pytest.approx(1e-6 * sum(spent[:number]))


def test_what_cannot_be_read_is_refused_with_a_reason(tmp_path: Path) -> None:
    assert "virtual machine" in refused(find_rapl(tmp_path)).reason
    psys = zone(tmp_path, "intel-rapl:0", "psys")
    assert "no counters" in refused(find_rapl(tmp_path)).reason
    (psys / "name").write_text("package-0")
    (psys / "energy_uj").write_text("much")
    assert "holds 'much', not a number" in refused(find_rapl(tmp_path)).reason
    show(psys, 5)
    meter = opened(find_rapl(tmp_path))
    (psys / "energy_uj").unlink()
    with pytest.raises(MeterFault, match="energy_uj cannot be read"):
        meter.joules()


def test_counters_of_root_only_say_how_to_open_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0")
    monkeypatch.setattr("os.access", lambda *_: False)
    meter = refused(find_rapl(tmp_path))
    assert "may be read by root only" in meter.reason
    assert "chmod" in meter.hint


def test_boards_in_use_are_counted_whole_and_once(nvml: FakeNvml) -> None:
    meter = opened(open_meter("cuda", boards=("GPU-a", "MIG-b1", "GPU-b")))
    assert (meter.joules(), meter.method) == (0.0, "nvml")
    for board in nvml.boards[:2]:
        assert board.energy_mj is not None
        board.energy_mj += 2_500
    assert meter.joules() == pytest.approx(5.0)
    assert "2 x NVIDIA H200, whole boards, by their energy counters" in meter.scope
    assert "CPU and memory of the machine are not in it" in meter.scope
    meter.close()
    assert nvml.open == 0
    assert "Not Found" in refused(open_meter("cuda", boards=("GPU-z",))).reason
    assert nvml.open == 0


def test_a_board_without_a_counter_has_its_power_integrated(nvml: FakeNvml) -> None:
    meter = opened(open_meter("cuda", boards=("GPU-c",)))
    before = meter.joules()
    assert "samples of power, integrated" in meter.scope
    while (now := meter.joules()) < before + 0.5:  # 100 W for 5 ms
        pass
    nvml.boards[2].power_mw = -1
    with pytest.raises(MeterFault, match="GPU is lost"):
        meter.joules()
    assert now > before
    meter.close()


def test_power_is_integrated_by_the_trapezoidal_rule() -> None:
    times, powers = iter([0.0, 1.0, 3.0]), iter([10.0, 30.0, 50.0])
    integral = PowerIntegral(lambda: next(powers), lambda: next(times))
    assert integral.joules() == pytest.approx(20.0)
    assert integral.joules() == pytest.approx(20.0 + 80.0)


def test_a_machine_without_a_driver_or_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([], driver=False))
    assert refused(open_meter("cuda")).reason == "NVML: Driver Not Loaded"
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([]))
    assert refused(open_meter("cuda")).reason == "NVML: there is no board"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr("specbatch.energy.nvml.DRIVERS", (Path(__file__),))
    assert refused(open_meter("cuda")).hint == 'pip install "specbatch[nvml]"'
    monkeypatch.setattr("specbatch.energy.nvml.DRIVERS", ())
    assert refused(open_meter("cuda")).reason == "NVML: no NVIDIA driver"


def test_an_assumption_is_labelled_and_needs_no_meter() -> None:
    meter = opened(open_meter("cpu", assume_watts=65.0))
    assert meter.method == "assumed"
    assert meter.scope == "65 W at all times, nothing was measured"
    times = iter([12.0])
    assert AssumedWatts(65.0, lambda: next(times), started=10.0).joules() == 130.0


def test_the_meter_fits_the_device(nvml: FakeNvml, tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0")
    assert opened(open_meter("cpu", root=tmp_path)).method == "rapl"
    assert opened(open_meter("auto", root=tmp_path)).method == "nvml"
    nvml.driver = False
    assert opened(open_meter("auto", root=tmp_path)).method == "rapl"
    both = refused(open_meter("auto", root=tmp_path / "nothing")).reason
    assert "NVML: Driver Not Loaded; RAPL: no counters" in both


def test_doctor_tells_of_all_meters(nvml: FakeNvml, tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0")
    rapl, gpu = look_at_meters(tmp_path)
    assert (rapl.name, rapl.readable, gpu.name, gpu.readable) == ("RAPL", True, "NVML", True)
    assert "package-0" in rapl.reason
    assert "NVIDIA H200" in gpu.reason
    assert nvml.open == 0
    rapl, _ = look_at_meters(tmp_path / "nothing")
    assert not rapl.readable
    assert rapl.reason.startswith("no counters")
