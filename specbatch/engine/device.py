"""Device, number format and kernels of a job, as far as this machine has them."""

from __future__ import annotations

import torch
from specbatch_kernels.cpu import Activations, available, unavailable_reason

from specbatch.config import JobConfig
from specbatch.errors import UsageError


def device_of(job: JobConfig) -> torch.device:
    """Where a job's model computes.

    Raises:
        UsageError: CUDA is asked for and not there.
    """
    if job.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: no CUDA device is usable here", "use --device cpu")
    return torch.device("cuda" if job.device != "cpu" and torch.cuda.is_available() else "cpu")


def dtype_of(job: JobConfig, device: torch.device) -> torch.dtype:
    """The number format of weights that are not quantised, and of keys and values.

    Raises:
        UsageError: The device does not compute in what is asked for.
    """
    if job.dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if device.type == "cpu" and job.dtype != "float32":
        raise UsageError(f"--dtype {job.dtype} on the CPU is not supported", "use --dtype float32")
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[job.dtype]


def uses_kernels(job: JobConfig, device: torch.device) -> bool:
    """Whether the compiled kernels do the work.

    Raises:
        UsageError: They are asked for and cannot.
    """
    if job.kernels == "compiled" and device.type != "cpu":
        raise UsageError("--kernels compiled works on the CPU only", "leave --kernels out")
    if job.kernels == "compiled" and not available():
        raise UsageError(f"--kernels compiled: {unavailable_reason()}", "use --kernels torch")
    compiled = job.kernels != "torch" and device.type == "cpu" and available()
    if job.activations == "int8" and not compiled:
        raise UsageError(
            "--activations int8 is for the compiled CPU kernels, which do not run here",
            "leave --activations out",
        )
    return compiled


def activations_of(job: JobConfig) -> Activations:
    """What the compiled kernels multiply quantised weights with."""
    return "int8" if job.activations == "auto" else job.activations


def missed_kernels(device: torch.device) -> str:
    """Why torch is slower here than the compiled kernels would be; empty when they would not help."""
    if device.type != "cpu" or available():
        return ""
    return f"slower than it could be, compiled kernels are missing: {unavailable_reason()}"
