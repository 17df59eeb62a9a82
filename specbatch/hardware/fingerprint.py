"""What measured times hold for: the machine, the kernels, the models, the program."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from hashlib import blake2b

FORMAT = 2
"""Of the file; raised when a field or the way of measuring changes."""

NO_DRAFTER = "none"

_LABELS = ("model",)
_VERSIONS = ("specbatch", "format")
_NOT_IDENTITY = (*_LABELS, *_VERSIONS)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What times depend on.

    Attributes:
        processor: Model name of the CPU or GPU.
        cores: Cores that the process may use.
        threads: Threads that compute.
        device: ``cpu`` or ``cuda``.
        dtype: Number format.
        kernels: Which kernels, instruction set included.
        page_size: Tokens in a page of keys and values.
        model: What the target is called; a label, not compared.
        model_digest: Of its weights.
        quantization: Its block format.
        drafter: What drafts; ``none`` without speculation.
        drafter_digest: Of the head's or draft model's weights; empty without.
        specbatch: Version of this program.
        format: Of the file.
    """

    processor: str
    cores: int
    threads: int
    device: str
    dtype: str
    kernels: str
    page_size: int
    model: str
    model_digest: str
    quantization: str
    drafter: str
    drafter_digest: str
    specbatch: str
    format: int = FORMAT

    @property
    def key(self) -> str:
        """32 hex digits over everything but versions and labels: where a profile is kept."""
        parts = [f"{name}={value}" for name, value in asdict(self).items() if name not in _NOT_IDENTITY]
        return blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def differences(self, other: Fingerprint) -> list[str]:
        """What another fingerprint says otherwise, in words; versions and labels aside."""
        here, there = asdict(self), asdict(other)
        named = [name for name in here if name not in _NOT_IDENTITY and here[name] != there[name]]
        return [
            f"another {name.removesuffix('_digest')}"
            if name.endswith("_digest")
            else f"{name.replace('_', ' ')} {there[name] or 'unknown'}, here {here[name] or 'unknown'}"
            for name in named
        ]

    def stale(self, other: Fingerprint) -> str:
        """Why a profile of another version of the program does not count; empty when it does."""
        for name in _VERSIONS:
            here, there = getattr(self, name), getattr(other, name)
            if here != there:
                label = "profile format" if name == "format" else "specbatch"
                return f"it was measured with {label} {there}, this is {here}"
        return ""
