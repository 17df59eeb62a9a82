"""Loads the compiled extension, once, or keeps the reason why it cannot be loaded."""

from __future__ import annotations

from types import ModuleType
from typing import Final

import torch

_extension: ModuleType | None
try:
    from specbatch_kernels.cpu import _native

    _extension = _native
    _reason = ""
except ImportError as error:
    _extension = None
    _reason = f"the CPU kernels were not compiled for this installation ({error})"

_EXTENSION: Final = _extension
_REASON: Final = _reason


class KernelsUnavailableError(RuntimeError):
    """The compiled extension is needed and missing; the message says why and what helps."""


def available() -> bool:
    """Whether the compiled kernels can be used in this installation."""
    return _EXTENSION is not None


def unavailable_reason() -> str:
    """Why :func:`available` is False, in one line; empty when the kernels are there."""
    return _REASON


def require() -> None:
    """Raises :class:`KernelsUnavailableError` unless the compiled kernels are there."""
    if _EXTENSION is None:
        hint = "install a C compiler and reinstall specbatch"
        raise KernelsUnavailableError(f"{_REASON}: {hint}")


def address(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int | None, ...]) -> int:
    """Data pointer of a tensor that is exactly what a kernel will read or write.

    Args:
        name: Argument name for the message.
        tensor: The tensor; the caller keeps it alive while the kernel runs.
        dtype: Element type it must have.
        shape: Extents it must have; None stands for any.

    Raises:
        ValueError: It is on another device, of another type or shape, or not contiguous.
    """
    if tensor.shape != shape and not _fits(tensor.shape, shape):
        raise _refusal(name, tensor, dtype, shape)
    if tensor.dtype is not dtype or not tensor.is_cpu or not tensor.is_contiguous():
        raise _refusal(name, tensor, dtype, shape)
    return tensor.data_ptr()


def _fits(extents: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    """Whether a tensor of these extents is what is wanted; None stands for any."""
    if len(extents) != len(wanted):
        return False
    return all(want in (None, have) for want, have in zip(wanted, extents, strict=True))


def _refusal(
    name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int | None, ...]
) -> ValueError:
    """What is wrong with a tensor."""
    wanted = "x".join("?" if extent is None else str(extent) for extent in shape)
    found = f"{tensor.dtype} {'x'.join(map(str, tensor.shape))} on {tensor.device}"
    layout = "" if tensor.is_contiguous() else ", not contiguous"
    return ValueError(f"{name}: expected a contiguous {dtype} tensor {wanted} on cpu, got {found}{layout}")
