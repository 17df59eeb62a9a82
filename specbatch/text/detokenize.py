"""Token by token back to text, exactly as decoding all tokens at once would give it.

Decoding is not additive: one character may span tokens, and one bad byte may turn the bytes before
it into replacement characters. Every detokenizer therefore splits what it knows into text that is
*settled*, whatever follows, and a *tail* that a later token may still take back.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

from specbatch.text.tokenizer import Tokenizer

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokenizer(Protocol):
    """The text of one row, extended by one token at a time."""

    def push(self, token_id: int) -> tuple[str, str]:
        """Take one token.

        Returns:
            The text that this token settled, and the whole tail behind it. Characters of which
            only some bytes are there belong to neither.
        """
        ...

    def flush(self) -> str:
        """Settle everything: the tail, or replacement characters for bytes that stay incomplete."""
        ...


def detokenizer_for(tokenizer: Tokenizer) -> Detokenizer:
    """The fastest exact detokenizer for this tokenizer's decoder."""
    decoder = tokenizer.backend.decoder
    if decoder is None:
        return WholeDetokenizer(tokenizer)
    state = json.loads(decoder.__getstate__())
    if state["type"] == "ByteLevel":
        return ByteLevelDetokenizer(tokenizer)
    strip = _byte_fallback_strip(state)
    return WholeDetokenizer(tokenizer) if strip is None else ByteFallbackDetokenizer(tokenizer, strip)


class WholeDetokenizer:
    """Decodes all tokens at every push: right for any decoder, and the twin of the others in tests."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []

    def push(self, token_id: int) -> tuple[str, str]:
        """See ``Detokenizer.push``; nothing is ever settled."""
        self._ids.append(token_id)
        return "", self._tokenizer.decode(self._ids).rstrip(_REPLACEMENT)

    def flush(self) -> str:
        """See ``Detokenizer.flush``."""
        return self._tokenizer.decode(self._ids)


class ByteLevelDetokenizer:
    """Byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM2): tokens are bytes, written as characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = tokenizer.special_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> tuple[str, str]:
        """See ``Detokenizer.push``; there is never a tail."""
        token = None if token_id in self._special else self._tokenizer.token(token_id)
        if token is None:
            return "", ""
        try:
            data = bytes(_BYTES[char] for char in token)
        except KeyError:  # an added token, written as it is
            data = token.encode()
        return self._decoder.decode(data), ""

    def flush(self) -> str:
        """See ``Detokenizer.flush``."""
        return self._decoder.decode(b"", final=True)


class ByteFallbackDetokenizer:
    """SentencePiece BPE (Llama 2, Mistral): words, and runs of byte tokens such as ``<0xE2>``.

    A run that is not valid UTF-8 as a whole becomes one replacement character per byte, so a run is
    settled when it ends or breaks.
    """

    def __init__(self, tokenizer: Tokenizer, strip: int) -> None:
        self._tokenizer = tokenizer
        self._special = tokenizer.special_ids
        self._strip = strip  # leading spaces still to be removed
        self._run = b""  # valid so far, possibly ending inside a character
        self._broken = False

    def push(self, token_id: int) -> tuple[str, str]:
        """See ``Detokenizer.push``."""
        token = None if token_id in self._special else self._tokenizer.token(token_id)
        if token is None:
            return "", self._tail()
        byte = _BYTE_TOKEN.fullmatch(token)
        if byte is None:
            settled = self._stripped(self._end_run())
            return settled + self._stripped(token.replace("▁", " ")), ""
        return self._push_byte(int(byte[1], 16)), self._tail()

    def flush(self) -> str:
        """See ``Detokenizer.flush``."""
        return self._stripped(self._end_run())

    def _push_byte(self, byte: int) -> str:
        if self._broken:
            return _REPLACEMENT
        self._run += bytes((byte,))
        try:
            codecs.utf_8_decode(self._run, "strict", False)
        except UnicodeDecodeError:
            settled = self._stripped(_REPLACEMENT * len(self._run))
            self._run, self._broken = b"", True
            return settled
        return ""

    def _end_run(self) -> str:
        text, complete = codecs.utf_8_decode(self._run, "strict", False)
        if complete < len(self._run):
            text = _REPLACEMENT * len(self._run)
        self._run, self._broken = b"", False
        return text

    def _tail(self) -> str:
        text, _ = codecs.utf_8_decode(self._run, "strict", False)
        return text[self._leading(text) :]

    def _stripped(self, text: str) -> str:
        cut = self._leading(text)
        # The first character that stays ends the stripping for good.
        self._strip = self._strip - cut if cut == len(text) else 0
        return text[cut:]

    def _leading(self, text: str) -> int:
        return min(self._strip, len(text) - len(text.lstrip(" ")))


def _byte_fallback_strip(state: Mapping[str, Any]) -> int | None:
    """Leading spaces removed by Llama's SentencePiece decoder; ``None`` for any other decoder."""
    steps = state.get("decoders", [])
    if [step["type"] for step in steps[:3]] != ["Replace", "ByteFallback", "Fuse"]:
        return None
    if steps[0] != {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}:
        return None
    if len(steps) == 3:
        return 0
    strip = steps[3]
    if len(steps) > 4 or strip["type"] != "Strip" or strip["content"] != " " or strip["stop"]:
        return None
    return int(strip["start"])


def _byte_alphabet() -> Mapping[str, int]:
    """Character → byte of byte-level BPE (Radford et al. 2019, ``bytes_to_unicode``)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return MappingProxyType(alphabet | {chr(256 + index): byte for index, byte in enumerate(others)})


_BYTES: Final = _byte_alphabet()
