"""Text ↔ token ids, with a ``tokenizer.json`` as the only input."""

from __future__ import annotations

from pathlib import Path

import tokenizers

from specbatch.errors import ModelError, SpecbatchError


def first_call() -> None:
    """Use the library once: it then claims memory for each thread, and waits until no library is loading."""
    tokenizers.Tokenizer(tokenizers.models.BPE())


class Tokenizer:
    """A ``tokenizers`` tokenizer that never pads, truncates or warns.

    Attributes:
        backend: The wrapped tokenizer.
        special_ids: Tokens that are markup rather than text.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        added = backend.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(token for token, entry in added.items() if entry.special)

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """Read ``tokenizer.json``.

        Raises:
            ModelError: The file is missing or not a tokenizer.
        """
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ModelError(
                f"{directory} has no tokenizer.json",
                "save it with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
            )
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except SpecbatchError:  # a signal that arrived meanwhile
            raise
        except Exception as error:  # the library raises bare Exception
            what = f"{path} is not a tokenizer this version can read: {error}"
            raise ModelError(
                what, "it may be damaged: fetch the model again (specbatch model pull --force)"
            ) from error

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added ones included."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of a text.

        Args:
            text: Any text; markup in it such as ``<|im_end|>`` becomes one token, as in transformers.
            add_special_tokens: Whether the model's own start (and end) tokens are put around it.

        Raises:
            UnicodeEncodeError: The text holds a lone surrogate and is no valid Unicode.
        """
        text.encode()  # the library answers a lone surrogate with a TypeError that explains nothing
        return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD."""
        return str(self.backend.decode(ids, skip_special_tokens=skip_special_tokens))

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it; ``None`` for an id it does not hold."""
        found = self.backend.id_to_token(token_id)
        return None if found is None else str(found)
