"""Where the documents come from, spelled out so that two collections can be told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specbatch.draft.training.documents import Document, Style, new_conversation
from specbatch.draft.training.opening import find_openings
from specbatch.draft.training.target import captured_places
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles
from specbatch.rows import SamplingParams
from specbatch.text.chat import ChatTemplate
from specbatch.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Writing:
    """How the target writes its own data.

    Attributes:
        seed: Of everything that is drawn.
        user_tokens: A longer user message is cut.
        answer_tokens: A longer answer is cut.
        temperature: Of every second answer; the others are greedy.
    """

    seed: int = 0
    user_tokens: int = 160
    answer_tokens: int = 320
    temperature: float = 0.7


@dataclass(frozen=True, slots=True)
class Source:
    """Documents by number, and what they are made of.

    Attributes:
        document: The document of a number; ``None`` after the last one.
        recipe: JSON-ready; equal for two collections whose documents are the same.
        capacity: Tokens of the longest document.
    """

    document: Callable[[int], Document | None]
    recipe: dict[str, object]
    capacity: int


def own_words(files: ModelFiles, config: ModelConfig, writing: Writing) -> Source:
    """Conversations that the target writes, prompted by nothing but its chat template.

    Raises:
        UsageError: The model has no chat template.
        ModelError: The template cannot be used for this, or the documents do not fit the context.
    """
    tokenizer = Tokenizer.load(files.directory)
    openings = find_openings(ChatTemplate.load(files.directory), tokenizer)
    style = Style(
        user=SamplingParams(temperature=1.0, top_p=0.95, max_tokens=writing.user_tokens),
        answers=(
            SamplingParams(max_tokens=writing.answer_tokens),
            SamplingParams(temperature=writing.temperature, max_tokens=writing.answer_tokens),
        ),
        end_ids=config.eos_ids,
    )
    longest = max(len(opening.before) + len(opening.after) for opening in openings)
    recipe = {
        **target_facts(files, config),
        "source": "the target's own conversations",
        "seed": writing.seed,
        "user": {"temperature": 1.0, "top_p": 0.95, "max_tokens": writing.user_tokens},
        "answer": {"temperatures": [0.0, writing.temperature], "max_tokens": writing.answer_tokens},
        "openings": [
            tokenizer.decode(list(opening.before), skip_special_tokens=False) for opening in openings
        ],
    }

    def document(number: int) -> Document:
        return new_conversation(number, writing.seed, style, openings)

    return Source(document, recipe, longest + writing.user_tokens + writing.answer_tokens)


def target_facts(files: ModelFiles, config: ModelConfig) -> dict[str, object]:
    """What every recipe says about the target."""
    return {
        "target": files.name,
        "target_digest": files.digest,
        "target_side_digest": files.side_digest,
        "captured": list(captured_places(config)),
    }
