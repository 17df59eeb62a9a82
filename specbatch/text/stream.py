"""The text of one row while it grows, and the stop strings that end it."""

from __future__ import annotations

from specbatch.text.detokenize import Detokenizer, detokenizer_for
from specbatch.text.tokenizer import Tokenizer


class TextStream:
    """Incremental text with stop strings.

    A push costs the same however long the text is. Stop strings are found in the text, so they may
    begin in one token and end in another; markup tokens are not part of the text. When several end
    at once or in one token, the one that ends first in the text wins, then the longest: where the
    text is cut does not depend on how it was cut into tokens.

    Args:
        tokenizer: Of the model.
        stop: Strings that end the text, none of them empty.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = ()) -> None:
        if "" in stop:
            raise ValueError("an empty stop string would end every text at once")
        self._detokenizer: Detokenizer = detokenizer_for(tokenizer)
        self._stop = stop
        self._overlap = max((len(text) for text in stop), default=1) - 1
        self._settled: list[str] = []
        self._window = ""  # the end of the settled text, where a stop string may have begun
        self._tail = ""
        self._stopped: str | None = None

    def push(self, token_id: int) -> bool:
        """Take one token; true when a stop string is complete with it. Later tokens change nothing."""
        if self._stopped is not None:
            return True
        settled, self._tail = self._detokenizer.push(token_id)
        known = self._window + settled
        if self._stop and (settled or self._tail):
            begin = _first_stop(known + self._tail, self._stop)
            if begin is not None:
                text = "".join(self._settled)
                self._stopped = (text + settled + self._tail)[: len(text) - len(self._window) + begin]
        self._settled.append(settled)
        self._window = known[-self._overlap :] if self._overlap else ""
        return self._stopped is not None

    @property
    def text(self) -> str:
        """The text so far, cut before the stop string; characters still incomplete are left out."""
        return "".join(self._settled) + self._tail if self._stopped is None else self._stopped

    def finish(self) -> str:
        """The text once no token follows: what decoding all tokens at once gives, cut at the stop."""
        if self._stopped is None:
            self._settled.append(self._detokenizer.flush())
            self._tail = ""
        return self.text


def _first_stop(text: str, stop: tuple[str, ...]) -> int | None:
    """Where the stop string that ends first begins; of those that end together the longest."""
    found = [(begin + len(string), begin) for string in stop if (begin := text.find(string)) >= 0]
    return min(found)[1] if found else None
