"""Energy of a run: every number measured and where it went, or null with the reason."""

from __future__ import annotations

import io
import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.config import JobConfig
from specbatch.energy.meter import EnergyMeter, Method, NoMeter
from specbatch.errors import ConfigError, ExitCode, MeterFault, UsageError
from specbatch.job.outcome import RunOutcome
from specbatch.job.run import Start, run_job
from specbatch.job.surroundings import Surroundings
from specbatch.progress import PlainReporter
from specbatch.report.terminal import Ending, print_summary
from specbatch.settings import load_config
from tests.tiny_models import write_tiny_model

PROMPTS = ["the quick brown fox", "she sells sea shells", "one step", "def total", ""]
WATTS = 80.0


class SteadyMeter:
    """So many watts, until it is read for the last time."""

    method: Method = "rapl"

    def __init__(self, watts: float = WATTS, reads: int = 10**9, scope: str = "a fake") -> None:
        self.watts, self.reads, self.scope, self.closed = watts, reads, scope, 0
        self._started = time.monotonic()

    def joules(self) -> float:
        self.reads -= 1
        if self.reads < 0:
            raise MeterFault("it is gone")
        return self.watts * (time.monotonic() - self._started)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("energy")
    write_tiny_model(folder / "model", "qwen2")
    table = {"prompt": PROMPTS, "tier": ["batch", "interactive", "batch", "batch", "batch"]}
    pq.write_table(pa.table(table), folder / "in.parquet")
    return folder


def job(folder: Path, out: str, **settings: object) -> JobConfig:
    return JobConfig.model_validate(
        {
            "input": (str(folder / "in.parquet"),),
            "model": str(folder / "model"),
            "out": folder / out,
            "max_tokens": 100,  # a meter is read every 20 ms: an attempt that is over before has no shares
            "max_failures": 1,
            "kv_memory": 2**22,
            "threads": 1,
            "policy": "fixed:2",
            "drafter": "suffix",
            **settings,
        }
    )


def run(config: JobConfig, meter: EnergyMeter | NoMeter, **start: Any) -> dict[str, Any]:
    """The summary of a run with this meter."""
    around = Surroundings(find_meter=lambda *_, **__: meter)
    outcome = run_job(config, start=Start(**start), surroundings=around)
    assert outcome.exit_code is ExitCode.OK
    return dict(outcome.summary)


def rows(config: JobConfig) -> list[dict[str, Any]]:
    assert config.out is not None
    found: list[dict[str, Any]] = pq.read_table(config.out / "results.parquet").to_pylist()
    return found


def total(found: list[dict[str, Any]], name: str) -> float:
    return math.fsum(row[name] or 0.0 for row in found)


def numbers(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every leaf of a document, with the way to it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers(inner, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from numbers(inner, f"{path}[{i}]")
    else:
        yield path, value


def test_a_measured_run_is_attributed_to_the_last_joule(folder: Path) -> None:
    config, meter = job(folder, "measured"), SteadyMeter()
    summary = run(config, meter)
    energy, seconds, found = summary["energy"], summary["time"], rows(config)
    assert total(found, "device_s") + seconds["idle_seconds"] == pytest.approx(
        seconds["engine_seconds"], rel=1e-9
    )
    assert total(found, "energy_j") + energy["idle_joules"] == pytest.approx(energy["joules"], rel=1e-9)
    assert energy["attributed_joules"] == pytest.approx(total(found, "energy_j"), rel=1e-9)
    assert energy["joules"] == pytest.approx(WATTS * seconds["engine_seconds"], rel=0.1)
    assert 0 < energy["attributed_joules"] < energy["joules"]
    parts = math.fsum(
        row["energy_j"] * row["rejected_s"] / row["device_s"] for row in found if row["device_s"]
    )
    assert energy["rejected_joules"] == pytest.approx(parts, rel=1e-9)
    assert energy["draft_joules"] > 0
    assert energy["lost_joules"] == pytest.approx(0.0, abs=1e-9)
    assert energy["joules_per_output_token"] == energy["joules"] / summary["tokens"]["output"]
    assert energy["mean_watts"] == pytest.approx(WATTS, rel=0.1)
    assert (energy["method"], energy["scope"], energy["reason"]) == ("rapl", "a fake", None)
    assert "part of all numbers" in energy["idle_treatment"]
    assert (found[4]["status"], found[4]["device_s"], found[4]["energy_j"]) == ("rejected", None, None)
    assert meter.closed == 1
    attempt = json.loads((folder / "measured" / "run.json").read_text())["attempts"][0]
    assert attempt["energy"]["joules"] == energy["joules"]


def test_attempts_add_up_and_lost_work_is_named(folder: Path) -> None:
    first = run(job(folder, "resumed", limit=2), SteadyMeter())["energy"]
    config = job(folder, "resumed")
    whole = run(config, SteadyMeter(watts=200.0))
    energy, found = whole["energy"], rows(config)
    assert energy["joules"] > first["joules"]
    assert whole["time"]["attempts"] == 2
    assert total(found, "energy_j") + energy["idle_joules"] == pytest.approx(energy["joules"], rel=1e-9)
    assert energy["attributed_joules"] > first["attributed_joules"]
    fewer = run(job(folder, "resumed", limit=1), SteadyMeter())["energy"]
    assert fewer["joules"] == energy["joules"], "nothing was computed"
    assert fewer["lost_joules"] == pytest.approx(
        energy["attributed_joules"] - fewer["attributed_joules"], rel=1e-6
    )


def test_reused_answers_took_no_energy_of_this_run(folder: Path) -> None:
    donor = job(folder, "donor", limit=2)
    run(donor, SteadyMeter())
    config = job(folder, "reusing")
    summary = run(config, SteadyMeter(), reuse=donor.out)
    found = rows(config)
    assert [row["energy_j"] is None for row in found] == [True, True, False, False, True]
    assert [row["device_s"] is None for row in found] == [True, True, False, False, True]
    energy, here = summary["energy"], sum(row["output_tokens"] for row in found[2:])
    assert total(found, "energy_j") + energy["idle_joules"] == pytest.approx(energy["joules"], rel=1e-9)
    assert energy["joules_per_output_token"] == pytest.approx(energy["joules"] / here)
    again = run(job(folder, "all reused", limit=2), SteadyMeter(), reuse=donor.out)["energy"]
    assert (again["joules"], again["reason"]) == (None, "nothing was computed in this run")


def test_without_a_meter_energy_is_null_everywhere_and_never_0(folder: Path) -> None:
    config = job(folder, "unmeasured", policy="off")
    summary = run(config, NoMeter("RAPL: no counters in /sys/class/powercap"))
    energy = dict(summary["energy"])
    proxies = energy.pop("proxies")
    assert energy.pop("method") == "none"
    assert energy.pop("reason") == "RAPL: no counters in /sys/class/powercap"
    assert set(energy.values()) == {None}
    for name in ("device_seconds", "attributed_seconds", "flops"):
        assert proxies[name] > 0
    leaves = dict(numbers({key: value for key, value in summary.items() if key != "energy"}))
    told = [path for path in leaves if any(word in path for word in ("joule", "watt", "energy", "_j"))]
    assert all(leaves[path] is None for path in told), told
    assert all(row["energy_j"] is None for row in rows(config))
    attempt = json.loads((folder / "unmeasured" / "run.json").read_text())["attempts"][0]
    for path, value in numbers(attempt):
        if any(word in path for word in ("joule", "watt", "energy", "_j")):
            assert value is None or isinstance(value, str), path


def test_a_real_machine_tells_the_truth_about_its_meters(folder: Path) -> None:
    config = job(folder, "real", limit=1)
    summary = dict(run_job(config).summary)
    energy: Any = summary["energy"]
    if energy["method"] == "none":
        assert energy["joules"] is None
        assert "RAPL" in energy["reason"]
    else:
        assert energy["joules"] > 0.0


def test_a_run_that_was_measured_in_part_has_no_total(folder: Path) -> None:
    run(job(folder, "partly", limit=2), SteadyMeter())
    energy = run(job(folder, "partly"), NoMeter("RAPL: gone"))["energy"]
    assert (energy["joules"], energy["attributed_joules"]) == (None, None)
    assert energy["reason"] == "attempt 2 of 2: RAPL: gone"
    run(job(folder, "mixed", limit=2), SteadyMeter())
    other = SteadyMeter()
    other.method = "assumed"
    energy = run(job(folder, "mixed"), other)["energy"]
    assert energy["joules"] is None
    assert "different ways (assumed, rapl)" in energy["reason"]


def test_a_meter_that_breaks_ends_no_run(folder: Path) -> None:
    meter = SteadyMeter(reads=2)  # opened, and set to zero when the engine begins; then no more
    energy = run(job(folder, "broken"), meter)["energy"]
    assert (energy["joules"], energy["method"]) == (None, "none")
    assert energy["reason"] == "the meter failed: it is gone"


def test_assumed_watts_are_labelled(folder: Path) -> None:
    config = job(folder, "assumed", assume_watts=65.0)
    energy: Any = run_job(config).summary["energy"]
    assert energy["method"] == "assumed"
    assert energy["scope"] == "65 W at all times, nothing was measured"
    assert energy["mean_watts"] == pytest.approx(65.0, rel=0.05)
    attempt = json.loads((folder / "assumed" / "run.json").read_text())["attempts"][0]
    assert attempt["energy"]["method"] == "assumed"


def test_idle_power_is_measured_before_the_run_when_asked(folder: Path) -> None:
    energy = run(job(folder, "idle", measure_idle=0.05), SteadyMeter())["energy"]
    assert energy["idle_watts"] == pytest.approx(WATTS, rel=0.01)
    assert "measured before the run" in energy["idle_treatment"]
    assert abs(energy["above_idle_joules"]) < 0.2 * energy["joules"]


@pytest.mark.parametrize(
    ("meter", "reason"),
    [
        (NoMeter("RAPL: no counters"), "RAPL: no counters"),
        (SteadyMeter(reads=0), "the meter failed: it is gone"),
    ],
)
def test_idle_power_that_cannot_be_measured_is_warned_of(
    folder: Path, tmp_path: Path, meter: EnergyMeter | NoMeter, reason: str
) -> None:
    log = io.StringIO()
    around = Surroundings(find_meter=lambda *_, **__: meter, open_reporter=lambda: PlainReporter(log))
    run_job(job(folder, str(tmp_path / "idle"), measure_idle=0.05, limit=1), surroundings=around)
    warned = [line.partition(" ")[2] for line in log.getvalue().splitlines() if "warning" in line]
    assert warned == [f"warning: --measure-idle 0.05 measures nothing: there is no energy meter ({reason})"]


def test_the_summary_in_words_has_joules_where_they_were_measured_and_no_line_elsewhere(
    folder: Path,
) -> None:
    measured = Surroundings(find_meter=lambda *_, **__: SteadyMeter())
    blind = Surroundings(find_meter=lambda *_, **__: NoMeter("RAPL: gone"))
    shown = in_words(run_job(job(folder, "told"), surroundings=measured))
    energy = json.loads((folder / "told" / "summary.json").read_text())["energy"]
    pattern = r"energy +(\S+) J \(rapl\), (\S+) J per output token, (\d+)% of it for rejected tokens"
    joules, each, share = re.findall(pattern, shown)[0]
    assert float(joules.replace(",", "")) == pytest.approx(energy["joules"], rel=0.01)
    assert float(each) == pytest.approx(energy["joules_per_output_token"], abs=0.05)
    assert float(share) == pytest.approx(100 * energy["rejected_joules"] / energy["joules"], abs=0.5)
    assert in_words(run_job(job(folder, "not told"), surroundings=blind)) == ""
    assert " J (assumed), " in in_words(run_job(job(folder, "told assumed", assume_watts=65.0)))


def in_words(outcome: RunOutcome) -> str:
    """The line about energy of the summary that a run prints."""
    stream = io.StringIO()
    print_summary(outcome.summary, Ending(outcome.directory, 0, ""), stream, 80)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines() if line.startswith("energy"))


@pytest.mark.parametrize(
    "settings", [{"power_cap": 100.0}, {"policy": "auto", "objective": "tokens_per_joule"}]
)
def test_what_needs_a_meter_is_refused_without_one(folder: Path, settings: dict[str, object]) -> None:
    config = job(folder, "refused", **settings)
    with pytest.raises(UsageError, match="needs an energy meter, and there is none: RAPL: closed") as caught:
        run(config, NoMeter("RAPL: closed", "open it"))
    assert (caught.value.exit_code, caught.value.hint) == (ExitCode.USAGE, "open it")
    assert not (folder / "refused" / "run.json").exists()


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ({"power_cap": "100", "assume_watts": "60"}, "measures nothing"),
        ({"measure_idle": "5", "assume_watts": "60"}, "measures nothing"),
        (
            {"policy": "off", "objective": "tokens_per_joule"},
            "policies that weigh costs: auto, adaserve, dspark",
        ),
        ({"power_cap": "0"}, "power-cap"),
    ],
)
def test_settings_that_cannot_be_are_refused(flags: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        load_config({"input": ("x",), **flags}, environ={})
