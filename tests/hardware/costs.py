"""Profiles made of formulas instead of measurements."""

from __future__ import annotations

from dataclasses import replace

from specbatch.hardware.cost import CostTable
from specbatch.hardware.fingerprint import Fingerprint
from specbatch.hardware.points import DraftPoint, PrefillPoint, VerifyPoint

HERE = Fingerprint(
    processor="Zen 3",
    cores=2,
    threads=2,
    device="cpu",
    dtype="float32",
    kernels="compiled-avx2",
    page_size=16,
    model="tiny",
    model_digest="a" * 64,
    quantization="q4_1",
    drafter="suffix+head",
    drafter_digest="b" * 64,
    specbatch="0.1.0",
)
TOKENS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (64, 512)


def pass_s(tokens: int, rows: int, context: int) -> float:
    """10 ms for the weights, 2 ms per token, 4 µs per key read, 1 µs per token and key."""
    return 1e-2 + 2e-3 * tokens + 4e-6 * rows * context + 1e-6 * tokens * context


def draft_s(rows: int, width: int, levels: int) -> float:
    """1 ms to begin with, 0.5 ms per level and 0.1 ms per node that is expanded."""
    return 1e-3 + 5e-4 * levels + 1e-4 * rows * (1 + width * (levels - 1))


def table(fingerprint: Fingerprint = HERE, draft: bool = True) -> CostTable:
    """As if measured without noise."""
    verify = [
        VerifyPoint(tokens, rows, context, pass_s(tokens, rows, context), 3)
        for context in CONTEXTS
        for tokens in TOKENS
        for rows in sorted({1, tokens})
    ]
    drafts = [
        DraftPoint(rows, width, levels, draft_s(rows, width, levels), 3)
        for rows in (1, 4, 16, 64)
        for width in (1, 4, 8)
        for levels in (1, 3)
    ]
    return CostTable(
        fingerprint=fingerprint if draft else replace(fingerprint, drafter="none", drafter_digest=""),
        verify=tuple(verify),
        draft=tuple(drafts) if draft else (),
        prefill=(PrefillPoint(32, 1e-2 + 32 * 1.5e-3, 3), PrefillPoint(128, 1e-2 + 128 * 1.5e-3, 3)),
        checks=(VerifyPoint(32, 8, 256, 1.1 * pass_s(32, 8, 256), 3),),
        bytes_per_token=46_080,
        bytes_per_node=244_224,
        effort="full",
        seconds=31.5,
        measured_at="2026-11-29T12:00:00+00:00",
    )
