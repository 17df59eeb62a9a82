"""The energy meter of an attempt: opened for the engine's device, read while the engine runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from specbatch.config import JobConfig
from specbatch.energy.meter import EnergyMeter, NoMeter
from specbatch.energy.track import EnergyTrack, idle_watts
from specbatch.errors import MeterFault, UsageError
from specbatch.hardware.boards import boards_in_use
from specbatch.progress import Reporter
from specbatch.table.manifest import AttemptEnergy


class MeterFinder(Protocol):
    """The signature of :func:`specbatch.energy.find.open_meter`, as far as it is used."""

    def __call__(
        self, device: str, assume_watts: float | None = None, boards: tuple[str, ...] = ()
    ) -> EnergyMeter | NoMeter:
        """Open the meter for a device."""


class Gauge:
    """What there is to say about the energy of an attempt.

    Args:
        meter: Opened, or why there is none.
    """

    def __init__(self, meter: EnergyMeter | NoMeter) -> None:
        self._meter = meter
        self._track = None if isinstance(meter, NoMeter) else EnergyTrack(meter)
        self._idle: tuple[float, float] | None = None

    @property
    def missing(self) -> NoMeter | None:
        """Why nothing is measured; ``None`` when something is."""
        return self._meter if isinstance(self._meter, NoMeter) else None

    def measure_idle(self, seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Measure power before anything is computed; nothing without a meter."""
        if isinstance(self._meter, NoMeter):
            return
        try:
            self._idle = (idle_watts(self._meter, seconds, sleep), seconds)
        except MeterFault as fault:
            self.close()
            self._meter, self._track = NoMeter(f"the meter failed: {fault}"), None

    def start(self) -> None:
        """The engine begins to work."""
        if self._track is not None:
            self._track.restart()

    def joules(self) -> float | None:
        """Since the engine began to work; ``None`` without a meter."""
        return None if self._track is None else self._track.joules()

    def record(self) -> AttemptEnergy:
        """For ``run.json``."""
        if isinstance(self._meter, NoMeter):
            return AttemptEnergy(method="none", reason=self._meter.reason)
        assert self._track is not None, "every meter is tracked"
        joules, (idle, seconds) = self._track.total(), self._idle or (None, None)
        return AttemptEnergy(
            method=self._meter.method,
            scope=self._meter.scope,
            reason=self._track.fault,
            joules=joules,
            peak_watts=None if joules is None else self._track.peak_watts,
            idle_watts=idle,
            idle_s=seconds,
        )

    def close(self) -> None:
        """Let go of the meter."""
        if not isinstance(self._meter, NoMeter):
            self._meter.close()


def open_gauge(config: JobConfig, device: str, find: MeterFinder, reporter: Reporter) -> Gauge:
    """The gauge for an engine that is ready to begin.

    Args:
        config: The job.
        device: Of the engine: ``cpu`` or ``cuda``.
        find: Opens a meter.
        reporter: Told of what takes a while, and of idle power that cannot be measured.

    Raises:
        UsageError: The job cannot be run without a meter, and there is none.
    """
    gauge = Gauge(find(device, config.assume_watts, boards_in_use(device)))
    if gauge.missing is not None:
        refuse_without_meter(config, gauge.missing)
    if config.measure_idle is not None:
        if gauge.missing is None:
            reporter.phase("measuring idle power")
            gauge.measure_idle(config.measure_idle)
        if gauge.missing is not None:
            wanted = f"--measure-idle {config.measure_idle:g} measures nothing"
            reporter.warning(f"{wanted}: there is no energy meter ({gauge.missing.reason})")
    return gauge


def require_meter(config: JobConfig, find: MeterFinder) -> None:
    """Look for a meter before anything is loaded, where the job cannot be run without.

    Raises:
        UsageError: There is none.
    """
    if config.needs_meter:
        meter = find(config.device)
        if isinstance(meter, NoMeter):
            refuse_without_meter(config, meter)
        else:
            meter.close()


def refuse_without_meter(config: JobConfig, missing: NoMeter) -> None:
    """Refuse settings that only mean something where energy is measured.

    Raises:
        UsageError: There are such settings.
    """
    if not config.needs_meter:
        return
    wanted = f"--power-cap {config.power_cap:g}" if config.power_cap else f"--objective {config.objective}"
    raise UsageError(
        f"{wanted} needs an energy meter, and there is none: {missing.reason}",
        missing.hint or f"run where one can be read (specbatch doctor lists them), or leave out {wanted}",
    )
