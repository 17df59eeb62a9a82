"""On CPU float32, no policy, drafter or batch size changes a token: the default model on the sample rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import pytest
from specbatch_kernels.cpu import Activations, PackedDecoder, available, unavailable_reason

from specbatch.config import JobConfig
from specbatch.draft.head_build import find_head
from specbatch.draft.head_weights import HeadConfig, save_head
from specbatch.engine.build import build_executor
from specbatch.engine.drafters import make_drafter, plan_drafts
from specbatch.engine.loop import Loop, Target
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles
from specbatch.models.packed import build_packed
from specbatch.models.resolve import resolve_model
from specbatch.models.stored import StoredTensor
from specbatch.rows import Answer, Prompt
from specbatch.text.chat import ChatTemplate
from specbatch.text.encoder import PromptEncoder
from specbatch.text.tokenizer import Tokenizer
from tests.draft.heads_in_hand import random_head
from tests.engine.table_model import PromptFeed, StepClock
from tests.engine.test_speculation import check_account
from tests.test_sample_rows import SAMPLE_DATA, outcomes

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not available(), reason=unavailable_reason() or "available"),
]
Weights: TypeAlias = Iterable[tuple[str, StoredTensor]]
PAGE = 16
BEGINNING, END, OUTPUT = PAGE, 20, 8
"""Of a sample row's prompt, its page of shared beginning and the end are run, and so many tokens behind."""
SHARE = {32: 2, 4: 8, 1: 10}
"""Rows in flight → one in how many sample rows is run; the combinations together run all of them."""

Combination: TypeAlias = tuple[str, str, int, bool]
COMBINATIONS: tuple[Combination, ...] = (
    # policy, drafter, rows in flight, prefix sharing
    ("fixed:1", "suffix", 32, True),
    ("fixed:1", "model", 4, False),
    ("fixed:1", "head", 1, True),
    ("fixed:2", "head", 4, True),
    ("fixed:2", "suffix+head", 1, False),
    ("fixed:3", "suffix", 1, True),
    ("fixed:3", "head", 32, False),
    ("fixed:4", "model", 1, True),
    ("fixed:4", "head", 4, False),
    ("fixed:4", "suffix+head", 32, True),
    ("fixed:5", "suffix+head", 4, True),
    ("fixed:5", "suffix", 1, False),
    ("fixed:6", "head", 1, True),
    ("fixed:6", "suffix", 4, True),
    ("fixed:7", "suffix+head", 4, False),
    ("fixed:7", "head", 1, True),
    ("fixed:8", "suffix", 4, True),
    ("fixed:8", "model", 1, False),
    ("eagle", "suffix", 1, False),
    ("eagle", "model", 4, True),
    ("eagle", "head", 1, True),
    ("eagle", "suffix+head", 32, False),
)


@dataclass(frozen=True)
class World:
    """The default model, the sample rows, and their texts without speculation."""

    files: ModelFiles
    config: ModelConfig
    tokenizer: Tokenizer
    rows: list[Prompt]
    head: Path

    def run(self, rows: Sequence[Prompt], **settings: object) -> dict[int, Answer]:
        job = JobConfig.model_validate(
            {
                "input": ("memory",),
                "kv_memory": 2**28,
                "page_size": PAGE,
                "kernels": "compiled",
                "policy": "off",
                **settings,
            }
        )
        plan = plan_drafts(job, self.files, self.config, self.tokenizer)
        if plan is None:
            executor, drafter = build_executor(job, self.files, self.config).executor, None
        else:
            executor = build_executor(job, self.files, self.config, plan.needs(job.page_size)).executor
            drafter = make_drafter(plan, self.config, executor)
        host = StepClock()
        loop = Loop(Target(self.config, self.tokenizer, executor, drafter), job, PromptFeed(rows, job), host)
        while loop.rows_left():
            loop.step()
            loop.check()
        assert loop.finish().draft_fault == ""
        return host.answers


@pytest.fixture(scope="module", autouse=True)
def packed_once() -> Iterator[None]:
    """Weights are packed once for each way of asking for them: passes only read them."""
    kept: dict[object, PackedDecoder] = {}

    def pack(
        config: ModelConfig,
        tensors: Weights,
        captured: tuple[int, ...] = (),
        activations: Activations = "int8",
    ) -> PackedDecoder:
        asked = captured, activations
        if asked not in kept:
            kept[asked] = build_packed(config, tensors, *asked)
        return kept[asked]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specbatch.engine.build.build_packed", pack)
        yield


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("speculation")
    files = resolve_model("smollm2-135m", report=lambda _: None)
    config = ModelConfig.from_directory(files.directory)
    tokenizer = Tokenizer.load(files.directory)
    encoder = PromptEncoder(tokenizer, ChatTemplate.load(files.directory), config)
    prompts = outcomes(SAMPLE_DATA / "jobs.parquet", encoder, folder)
    rows = [cut(p) for p in prompts if isinstance(p, Prompt)]
    assert len(rows) == 60
    return World(files, config, tokenizer, rows, find_head(files) or some_head(config, folder))


def cut(prompt: Prompt) -> Prompt:
    """A sample row that is quick to answer and there from the start."""
    params = replace(prompt.params, max_tokens=min(OUTPUT, prompt.params.max_tokens))
    tokens = prompt.token_ids[:BEGINNING] + prompt.token_ids[BEGINNING:][-END:]
    return replace(prompt, arrival=0.0, token_ids=tokens, params=params)


def some_head(config: ModelConfig, folder: Path) -> Path:
    """A head that knows nothing: what it says is wrong, and the text must be right."""
    head = HeadConfig(
        hidden=config.hidden_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate=config.intermediate_size,
        draft_vocab=2048,
        captured=(2, config.num_layers // 2, config.num_layers - 3),
        eps=1e-5,
        rope_theta=config.rope_theta,
    )
    save_head(random_head(head, config.vocab_size), folder / "head.safetensors", "q8_0")
    return folder / "head.safetensors"


@pytest.fixture(scope="module")
def plain(world: World) -> dict[int, tuple[int, ...]]:
    texts = {i: answer.token_ids for i, answer in world.run(world.rows).items()}
    assert len(set(texts.values())) > 40
    return texts


def rows_of(world: World, combination: Combination) -> list[Prompt]:
    """The next share of the sample rows that this number of rows in flight has not seen."""
    step = SHARE[combination[2]]
    earlier = COMBINATIONS[: COMBINATIONS.index(combination)]
    return world.rows[sum(other[2] == combination[2] for other in earlier) % step :: step]


@pytest.mark.parametrize("in_flight", SHARE)
def test_combinations_run_all_sample_rows_at_every_number_of_rows_in_flight(
    world: World, in_flight: int
) -> None:
    found = [rows_of(world, c) for c in COMBINATIONS if c[2] == in_flight]
    assert {p.row_index for rows in found for p in rows} == set(range(60))
    assert min(map(len, found)) >= min(in_flight, 30)


@pytest.mark.timeout(900)  # the largest of them take minutes on a machine that is busy
@pytest.mark.parametrize(("policy", "drafter", "in_flight", "sharing"), COMBINATIONS)
def test_token_ids_are_those_of_plain_decoding(
    world: World,
    plain: dict[int, tuple[int, ...]],
    policy: str,
    drafter: str,
    in_flight: int,
    sharing: bool,
) -> None:
    rows = rows_of(world, (policy, drafter, in_flight, sharing))
    more: dict[str, object] = {"draft_head": world.head} if "head" in drafter else {}
    if policy == "eagle":
        more["tree_nodes"] = 8
    if drafter == "model":
        more["draft_model"] = "smollm2-135m"
    found = world.run(
        rows, policy=policy, drafter=drafter, max_rows_in_flight=in_flight, prefix_sharing=sharing, **more
    )
    assert {i: a.token_ids for i, a in found.items()} == {p.row_index: plain[p.row_index] for p in rows}
    for answer in found.values():
        check_account(answer)
    if drafter == "model":
        accounts = [answer.drafts for answer in found.values()]
        # A drafter that is the target itself; only noise at temperature 1 stands between the two.
        assert sum(a.accepted for a in accounts) > sum(a.target_passes for a in found.values()) / 2
    assert sum(answer.drafts.verified for answer in found.values()) > 0


def test_where_keys_and_values_have_little_room_nobody_drafts_with_a_head_unasked(world: World) -> None:
    def kind(**settings: object) -> str:
        job = JobConfig.model_validate({"input": ("memory",), "policy": "auto", **settings})
        plan = plan_drafts(job, world.files, world.config, world.tokenizer)
        assert plan is not None
        return plan.kind

    assert kind() == kind(kv_memory=2**28) == "suffix+head"
    assert kind(kv_memory=5 * 2**20) == "suffix"
    assert kind(kv_memory=5 * 2**20, drafter="suffix+head") == "suffix+head"
    assert kind(kv_memory=5 * 2**20, draft_head=world.head) == "suffix+head"
