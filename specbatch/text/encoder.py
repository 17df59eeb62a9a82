"""One input row as text → one row as token ids, or the reason why not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specbatch.errors import ConfigError, RowFault
from specbatch.rows import Message, Prompt, RawPrompt
from specbatch.text.chat import ChatTemplate, RenderError
from specbatch.text.tokenizer import Tokenizer


class ContextLimit(Protocol):
    """A model's configuration, as far as text is concerned."""

    @property
    def max_context(self) -> int:
        """Most tokens a row may hold, prompt and output together."""
        ...


class PromptEncoder:
    """Applies system message, chat template and tokenizer to rows.

    Args:
        tokenizer: Of the model.
        template: Of the model; without one, prompts go in as they are and ``messages`` rows fault.
        config: Of the model; gives its longest context.
        system: System message put before every conversation that does not begin with its own.
        raw_prompts: Whether prompts go in as they are although the model has a chat template.

    Attributes:
        tokenizer: Of the model.

    Raises:
        ConfigError: A system message is given and there is no template to place it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        config: ContextLimit,
        system: str | None = None,
        raw_prompts: bool = False,
    ) -> None:
        if system is not None and template is None:
            raise ConfigError("a system message needs a chat template, and the model has none")
        if system is not None and raw_prompts:
            raise ConfigError("a system message cannot be combined with raw prompts")
        self.tokenizer = tokenizer
        self._template = template
        self._config = config
        self._system = system
        self._raw_prompts = raw_prompts

    def encode(self, raw: RawPrompt) -> Prompt:
        """Tokenise one row.

        Raises:
            RowFault: ``empty_prompt``, ``invalid_utf8``, ``invalid_messages``, ``template_error``,
                ``prompt_too_long`` or ``max_tokens_exceeds_context``.
        """
        text, templated = self.text(raw)
        try:
            # A template writes the model's start token itself.
            ids = self.tokenizer.encode(text, add_special_tokens=not templated)
        except UnicodeEncodeError as error:
            raise RowFault("invalid_utf8", f"the prompt is not valid Unicode: {error.reason}") from error
        if not ids:
            raise RowFault("empty_prompt", "the prompt has no tokens; give it some text")
        self._check_length(len(ids), raw.params.max_tokens)
        return Prompt(
            row_index=raw.row_index,
            key=raw.key,
            id=raw.id,
            tier=raw.tier,
            token_ids=tuple(ids),
            params=raw.params,
            slo=raw.slo,
            arrival=raw.arrival,
            owner=raw.owner,
            max_draft_tokens=raw.max_draft_tokens,
            demotion=raw.demotion,
        )

    def text(self, raw: RawPrompt) -> tuple[str, bool]:
        """The text to tokenise, and whether a template wrote it.

        Raises:
            RowFault: ``empty_prompt``, ``invalid_messages`` or ``template_error``.
        """
        if isinstance(raw.content, str):
            if not raw.content.strip():
                raise RowFault("empty_prompt", "column prompt is empty; give it some text")
            if self._template is None or self._raw_prompts:
                return raw.content, False
            return self._render(self._template, ({"role": "user", "content": raw.content},)), True
        if self._template is None:
            raise RowFault(
                "template_error", "the model has no chat template; use column prompt, not messages"
            )
        _check_messages(raw.content)
        return self._render(self._template, raw.content), True

    def _render(self, template: ChatTemplate, messages: Sequence[Message]) -> str:
        if self._system is not None and messages[0].get("role") != "system":
            messages = [{"role": "system", "content": self._system}, *messages]
        try:
            return template.render(messages)
        except RenderError as error:
            raise RowFault("template_error", f"the model's chat template refused the row: {error}") from error

    def _check_length(self, num_tokens: int, max_tokens: int) -> None:
        context = self._config.max_context
        if num_tokens >= context:
            raise RowFault(
                "prompt_too_long",
                f"the prompt has {num_tokens} tokens; the model holds {context}, output included; shorten it",
            )
        if num_tokens + max_tokens > context:
            raise RowFault(
                "max_tokens_exceeds_context",
                f"{num_tokens} prompt tokens and max_tokens = {max_tokens} exceed the model's {context};"
                f" at most {context - num_tokens} fit",
            )


def _check_messages(messages: Sequence[Message]) -> None:
    """Every message has a role, and content or something that stands for it."""
    if not messages:
        raise RowFault("empty_prompt", "column messages is empty; give it at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise RowFault(
                "invalid_messages", f"messages[{index}] has no role; use system, user or assistant"
            )
        if message.get("content") is None and not message.get("tool_calls"):
            raise RowFault("invalid_messages", f"messages[{index}] has no content")
