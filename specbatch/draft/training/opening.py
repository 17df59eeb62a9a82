"""How a conversation begins: the parts of a chat template around the user's words, as tokens."""

from __future__ import annotations

from dataclasses import dataclass

from specbatch.errors import ModelError, UsageError
from specbatch.text.chat import ChatTemplate, RenderError
from specbatch.text.tokenizer import Tokenizer

_MARKER = "\u2042\u2042"
_HINT = "train on the rows of a past run instead: --rows RUN_DIRECTORY"


@dataclass(frozen=True, slots=True)
class Opening:
    """A chat template with a gap for the user's words.

    Attributes:
        before: Tokens up to the user's first word.
        after: Tokens from the end of the user's turn to the first word of the answer; the first of
            them is what ends a turn.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]


def find_openings(template: ChatTemplate | None, tokenizer: Tokenizer) -> tuple[Opening, ...]:
    """The template with its default system turn and, where the template lets one be told, without it.

    Raises:
        UsageError: The model has no chat template.
        ModelError: The template does not print a plain user message.
    """
    if template is None:
        raise UsageError("this model has no chat template, so it cannot write conversations", _HINT)
    try:
        before, after = _around(template.render([_turn("user", _MARKER)]))
    except RenderError as error:
        raise ModelError(
            f"the chat template cannot be used to write conversations: {error}", _HINT
        ) from error
    opening = Opening(_encode(tokenizer, before), _encode(tokenizer, after))
    if not opening.before or not opening.after:
        raise ModelError("the chat template puts no tokens around the user's words", _HINT)
    bare = _without_system(template, tokenizer.token(opening.after[0]) or "")
    if bare is None or bare == before:
        return (opening,)
    return (opening, Opening(_encode(tokenizer, bare), opening.after))


def _without_system(template: ChatTemplate, end_of_turn: str) -> str | None:
    """What stands between a system turn and the user's words, less the end of the former."""
    try:
        text = template.render([_turn("system", _MARKER), _turn("user", _MARKER)])
    except RenderError:
        return None  # some templates know no system turn
    parts = text.split(_MARKER)
    if len(parts) != 3 or not end_of_turn or not parts[1].startswith(end_of_turn):
        return None
    return parts[1].removeprefix(end_of_turn).lstrip() or None


def _around(text: str) -> tuple[str, str]:
    parts = text.split(_MARKER)
    if len(parts) != 2:
        raise ModelError("the chat template does not print the user's words as they are", _HINT)
    return parts[0], parts[1]


def _turn(role: str, content: str) -> dict[str, object]:
    return {"role": role, "content": content}


def _encode(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))
