"""Random draws addressed by (seed, row, purpose, position, token): no generator, nothing stored.

A draw is a pure function of its address, so it does not matter when, in which batch or how often it
is evaluated. The bits are SplitMix64 (Steele, Lea & Flood, OOPSLA 2014, figure 16): the address is
hashed to the 64-bit state of a stream, and token ``t`` reads the stream's output number ``t``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


class Purpose(StrEnum):
    """What a draw is for; draws of different purposes are independent."""

    TOKEN = "token"  # noqa: S105 - not a password


@dataclass(frozen=True, slots=True)
class Stream:
    """Independent uniform draws, one for every (position, token).

    Attributes:
        key: 64-bit hash of seed, row and purpose.
    """

    key: int

    @classmethod
    def at(cls, seed: int, row: str, purpose: Purpose) -> Stream:
        """The stream of one row. ``row`` is the row key, or the row's own seed spelt out."""
        address = f"{seed}/{row}/{purpose}".encode()
        return cls(int.from_bytes(blake2b(address, digest_size=8).digest(), "little"))

    def state(self, position: int) -> int:
        """SplitMix64 state (64 bits, unsigned) from which the tokens of one position are read."""
        return _mix(self.key ^ _mix(position + 1))


def uniform(stream: Stream, position: int, tokens: Tensor) -> Tensor:
    """Uniform draws in the open interval (0, 1), one for each token.

    Args:
        stream: The row's stream.
        position: Absolute position of the token to be drawn (prompt tokens count).
        tokens: Token ids, int64 ``[n]``.

    Returns:
        float64 ``[n]``: 53-bit fractions plus half a unit, so that neither 0 nor 1 occurs.
    """
    state = _signed(stream.state(position))
    bits = _mix_tensor(state + (tokens + 1) * _signed(_GAMMA))
    return (_shift_right(bits, 11).to(torch.float64) + 0.5) * 2.0**-53


def uniform_reference(stream: Stream, position: int, tokens: Tensor) -> Tensor:
    """Slow twin of :func:`uniform`: unbounded integers, one token at a time."""
    return torch.tensor(_uniform_of_few(stream, position, tokens.tolist()), dtype=torch.float64)


def gumbel(stream: Stream, position: int, tokens: Tensor) -> Tensor:
    """Standard Gumbel draws, one for each token: ``argmax(log p + g)`` is a sample of ``p``.

    Args:
        stream: The row's stream.
        position: Absolute position of the token to be drawn.
        tokens: Token ids, int64 ``[n]``.

    Returns:
        float64 ``[n]``.
    """
    return -torch.log(-torch.log(uniform(stream, position, tokens)))


def gumbel_of_few(stream: Stream, position: int, tokens: Sequence[int]) -> list[float]:
    """:func:`gumbel` for a handful of tokens: plain integers cost less than tensors there."""
    return [-math.log(-math.log(u)) for u in _uniform_of_few(stream, position, tokens)]


def gumbel_reference(stream: Stream, position: int, tokens: Tensor) -> Tensor:
    """Slow twin of :func:`gumbel`."""
    return torch.tensor(gumbel_of_few(stream, position, tokens.tolist()), dtype=torch.float64)


def _uniform_of_few(stream: Stream, position: int, tokens: Sequence[int]) -> list[float]:
    state = stream.state(position)
    return [((_mix(state + (token + 1) * _GAMMA) >> 11) + 0.5) * 2.0**-53 for token in tokens]


def _mix(word: int) -> int:
    """The output function of SplitMix64 on unsigned 64-bit integers."""
    word &= _MASK
    word = ((word ^ (word >> 30)) * _MIX_1) & _MASK
    word = ((word ^ (word >> 27)) * _MIX_2) & _MASK
    return word ^ (word >> 31)


def _mix_tensor(words: Tensor) -> Tensor:
    """:func:`_mix` on int64 tensors, whose arithmetic wraps."""
    words = (words ^ _shift_right(words, 30)) * _signed(_MIX_1)
    words = (words ^ _shift_right(words, 27)) * _signed(_MIX_2)
    return words ^ _shift_right(words, 31)


def _shift_right(words: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch shifts int64 arithmetically."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """The int64 with the same 64 bits."""
    return word - (1 << 64) if word >> 63 else word
