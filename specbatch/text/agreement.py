"""Whether two models speak of the same tokens when they name the same ids."""

from __future__ import annotations

from specbatch.text.tokenizer import Tokenizer


def disagreement(one: Tokenizer, other: Tokenizer) -> str:
    """Why ids of two tokenizers do not mean the same; empty when every one of them does.

    Compared are the tokens behind all ids, added ones included, and which of them are markup. How a text
    is cut into tokens may differ: ids that are already there mean the same text.
    """
    ours, theirs = (_spellings(tokenizer) for tokenizer in (one, other))
    differing = sorted(i for i in ours.keys() | theirs.keys() if ours.get(i) != theirs.get(i))
    if differing:
        first = differing[0]
        return (
            f"{len(differing):,} of {len(ours.keys() | theirs.keys()):,} token ids differ, the first is "
            f"{first}: {_shown(ours.get(first))} against {_shown(theirs.get(first))}"
        )
    markup = sorted(one.special_ids ^ other.special_ids)
    if markup:
        return f"token {markup[0]} ({_shown(ours.get(markup[0]))}) is markup in only one of them"
    return ""


def _spellings(tokenizer: Tokenizer) -> dict[int, str]:
    """Token id → the token as the vocabulary spells it."""
    vocabulary: dict[str, int] = tokenizer.backend.get_vocab(with_added_tokens=True)
    return {token_id: token for token, token_id in vocabulary.items()}


def _shown(token: str | None) -> str:
    return "no token" if token is None else repr(token)
