"""The row's Gumbel noise for a handful of candidates, without the cost of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specbatch.randomness import Stream

_MASK = (1 << 64) - 1


def gumbel_of_few(stream: Stream, position: int, tokens: Sequence[int]) -> list[float]:
    """What :func:`specbatch.randomness.gumbel` gives, in plain integers (SplitMix64).

    Args:
        stream: The row's stream.
        position: Absolute position of the token to be drawn.
        tokens: Token ids.
    """
    state = stream.state(position)
    draws = []
    for token in tokens:
        word = (state + (token + 1) * 0x9E3779B97F4A7C15) & _MASK
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
        word ^= word >> 31
        draws.append(-math.log(-math.log(((word >> 11) + 0.5) * 2.0**-53)))
    return draws
