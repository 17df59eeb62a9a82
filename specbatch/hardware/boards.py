"""Which GPUs a run uses, by names that other libraries know as well."""

from __future__ import annotations


def boards_in_use(device: str) -> tuple[str, ...]:
    """UUIDs of the GPUs that torch computes on.

    Args:
        device: ``cuda`` or ``cpu``; torch is imported for the former only.
    """
    if device != "cuda":
        return ()
    # Only called once an engine is there, which has imported it.
    import torch  # noqa: PLC0415

    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    return (uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}",)
