"""The network in training: chains equal a real roll-out, the loss equals its definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import rms_norm

from specbatch.draft.head_config import HeadConfig
from specbatch.draft.head_module import HeadModule
from specbatch.draft.training.batch import Batch, Example, chain_lengths, pack
from specbatch.draft.training.documents import Mark, repeats
from specbatch.draft.training.evaluate import evaluate
from specbatch.draft.training.loss import Sampling, Teacher, draft_loss
from specbatch.draft.training.unroll import attend_documents, unroll

HIDDEN, VOCAB, DRAFT = 32, 40, 24
CONFIG = HeadConfig(
    hidden=HIDDEN,
    heads=4,
    kv_heads=2,
    head_dim=8,
    intermediate=48,
    draft_vocab=DRAFT,
    captured=(0, 1, 2),
    eps=1e-5,
    rope_theta=100.0,
)


def make_module(seed: int = 0) -> HeadModule:
    torch.manual_seed(seed)
    angles = torch.arange(64.0).unsqueeze(1) / 100.0 ** (torch.arange(4) / 4)
    module = HeadModule(CONFIG, torch.randn(VOCAB, HIDDEN), torch.stack([angles.cos(), angles.sin()], dim=1))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(
                torch.rand_like(parameter) + 0.5
                if parameter.dim() == 1
                else torch.randn_like(parameter) * 0.3
            )
    return module.double()


def make_example(length: int, prompt: int, seed: int, hidden: int = HIDDEN) -> Example:
    rng = np.random.default_rng(seed)
    marks = np.full(length, Mark.ANSWER, dtype=np.uint8)
    marks[:prompt] = Mark.USER
    marks[0] = Mark.TEMPLATE
    states = rng.standard_normal((length, 4, hidden)).astype(np.float16)
    return Example(rng.integers(0, VOCAB, length).astype(np.int32), marks, states)


def make_batch(*shapes: tuple[int, int]) -> Batch:
    examples = [make_example(length, prompt, seed) for seed, (length, prompt) in enumerate(shapes)]
    batch = pack(examples, user_weight=0.3)
    return Batch(
        batch.tokens,
        batch.positions,
        batch.features.double(),
        batch.final.double(),
        batch.weights.double(),
        batch.documents,
        batch.roots,
    )


def roll_out(module: HeadModule, batch: Batch, start: int, root: int, steps: int) -> Tensor:
    """Slow twin of :func:`unroll` for one chain: a text of its own that grows by one entry a step."""
    seen = slice(start, root + 1)
    fused = module.fuse(batch.features[seen]) * (batch.positions[seen] > 0).unsqueeze(1)
    for step in range(steps + 1):
        upto = slice(start, root + step + 1)
        q, k, v = module.heads(module.embed(batch.tokens[upto]), fused, batch.positions[upto])
        outputs = module.finish(fused, attend_documents(q, k, v, (0, len(q))))
        fused = torch.cat([fused, outputs[-1:]])
    return outputs[-1]


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.integers(2, 14), st.integers(1, 12)), min_size=1, max_size=3))
def test_every_chain_equals_its_own_roll_out(shapes: list[tuple[int, int]]) -> None:
    module, batch = make_module(), make_batch(*shapes)
    with torch.no_grad():
        for step, found in enumerate(unroll(module, batch, 3)):
            expected = []
            for start, root, count in zip(
                batch.documents, batch.roots, chain_lengths(batch, step), strict=False
            ):
                roots = range(start, batch.documents[batch.documents.index(start) + 1]) if step == 0 else ()
                expected += [roll_out(module, batch, start, entry, 0) for entry in roots]
                chains = range(root, root + count) if step else ()
                expected += [roll_out(module, batch, start, entry, step) for entry in chains]
            assert len(found.outputs) == len(expected)
            if expected:
                torch.testing.assert_close(found.outputs, torch.stack(expected))


def test_a_chain_does_not_see_features_behind_its_root() -> None:
    module, batch = make_module(), make_batch((12, 4))
    with torch.no_grad():
        before = unroll(module, batch, 2)[2]
        batch.features[8:] += 1.0
        after = unroll(module, batch, 2)[2]
    changed = (before.outputs != after.outputs).any(dim=1)
    # The chain that stands at entry e began at e - 2, whose features are of entry e - 2 at the latest.
    assert torch.equal(changed, before.entries - 2 >= 8)


def test_predictions_weigh_by_who_wrote_the_predicted_token() -> None:
    batch = make_batch((6, 3))
    assert batch.weights.tolist() == pytest.approx([0.3, 0.3, 1.0, 1.0, 1.0, 0.0])
    assert batch.roots == (3,)
    assert [chain_lengths(batch, step) for step in range(4)] == [[2], [1], [0], [0]]


def plain_loss(module: HeadModule, batch: Batch, teacher: Teacher, decay: float) -> Tensor:
    """The loss by its definition, all logits at once."""
    total = torch.zeros((), dtype=torch.float64)
    for step, found in enumerate(unroll(module, batch, 2)):
        wanted = rms_norm(batch.final[found.entries], (HIDDEN,), teacher.norm, teacher.eps) @ teacher.head.T
        told = torch.log_softmax(found.outputs @ module.lm_head.weight.T, dim=1)
        wanted = torch.log_softmax(wanted, dim=1)
        divergence = (wanted.exp() * (wanted - told)).sum(dim=1)
        total = total + decay**step * (divergence * batch.weights[found.entries]).sum()
    return total


def make_teacher() -> Teacher:
    torch.manual_seed(5)
    return Teacher(
        torch.rand(HIDDEN, dtype=torch.float64) + 0.5, 1e-5, torch.randn(DRAFT, HIDDEN, dtype=torch.float64)
    )


def blocked_loss(module: HeadModule, batch: Batch, teacher: Teacher, sampling: Sampling) -> Tensor:
    weights = batch.weights * (0.8 ** torch.arange(3)).unsqueeze(1)
    steps = unroll(module, batch, 2)
    return draft_loss(steps, module.lm_head.weight, (batch.final, weights), teacher, sampling)


def test_loss_and_gradients_equal_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbatch.draft.training.loss._ROWS", 7)
    batch, teacher = make_batch((12, 4), (9, 2), (5, 5)), make_teacher()
    one, other = make_module(), make_module()
    expected = plain_loss(one, batch, teacher, 0.8)
    expected.backward()  # type: ignore[no-untyped-call]
    found = blocked_loss(other, batch, teacher, Sampling(DRAFT, 1e-3, torch.Generator()))
    (2 * found).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, expected)
    for (name, mine), theirs in zip(other.named_parameters(), one.parameters(), strict=True):
        assert mine.grad is not None, name
        assert theirs.grad is not None, name
        # Rotation works in float32.
        assert torch.allclose(mine.grad, 2 * theirs.grad, rtol=1e-4, atol=1e-5), name


def mean_head_gradient(sampling: Sampling, draws: int) -> Tensor:
    batch, teacher, module = make_batch((12, 4)), make_teacher(), make_module()
    for _ in range(draws):
        (blocked_loss(module, batch, teacher, sampling) / draws).backward()  # type: ignore[no-untyped-call]
    assert module.lm_head.weight.grad is not None
    return module.lm_head.weight.grad


def test_sampled_tokens_stand_for_the_ones_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many draws, the gradient with few draft tokens is about that with all of them."""
    monkeypatch.setattr("specbatch.draft.training.loss._FEWEST_OTHERS", 4)
    exact = mean_head_gradient(Sampling(DRAFT, 0.0, torch.Generator()), 1)
    few = Sampling(20, 0.05, torch.Generator().manual_seed(1))
    assert len(few.columns(make_teacher().log_probs(make_batch((12, 4)).final).exp())[0]) < DRAFT
    error = (mean_head_gradient(few, 50) - exact).norm() / exact.norm()
    monkeypatch.setattr("specbatch.draft.training.loss.math.log", lambda _share: 0.0)
    careless = (mean_head_gradient(few, 50) - exact).norm() / exact.norm()
    assert error < 0.15
    assert error < 0.8 * careless


def make_counting_module() -> HeadModule:
    """A head that always proposes the token after the one it reads.

    Attention to the entry itself wins by far (equal keys, the largest embedding), and carries the
    embedding of the token to the LM head, whose row of token t + 1 is the embedding of token t.
    """
    module = make_module().float()
    config = replace(CONFIG, heads=1, kv_heads=1, head_dim=HIDDEN)
    module = HeadModule(config, 4 * torch.eye(VOCAB)[:, :HIDDEN], torch.zeros(64, 2, HIDDEN // 2))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_() if parameter.dim() == 2 else parameter.fill_(1.0)
        attention = module.midlayer.self_attn
        module.rotary[:, 0] = 1.0
        attention.q_proj.weight[:, :HIDDEN] = 20 * torch.eye(HIDDEN)
        attention.k_proj.weight[:, :HIDDEN] = torch.eye(HIDDEN)
        attention.v_proj.weight[:, :HIDDEN] = torch.eye(HIDDEN)
        attention.o_proj.weight.copy_(2 * torch.eye(HIDDEN))  # more than the state that is fed back
        module.lm_head.weight[1:] = torch.eye(HIDDEN)[: DRAFT - 1]
    return module


def test_acceptance_counts_what_the_target_would_take() -> None:
    """Drafts count up from the token they start at; the answer counts up by one, but for one place."""
    tokens = np.array([0, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14], dtype=np.int32)
    marks = np.full(12, Mark.ANSWER, dtype=np.uint8)
    marks[:2] = Mark.USER
    example = Example(tokens, marks, make_example(12, 1, 0).states)
    found = evaluate(make_counting_module(), [example], torch.arange(DRAFT), 3)
    # Places are entries 2 .. 10; the draft after token 6 is wrong, and chains end with the document.
    assert found.positions == 9
    by_depth = [8 / 9, 6 / 9, 4 / 9]
    assert found.acceptance == pytest.approx(by_depth)
    # 2 → 3 4 5 and 6; 6 → 10 (all drafts wrong); 10 → 11 12 13 and 14.
    assert found.tokens_per_pass == pytest.approx(9 / 3)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3] * 16, True),
        ([7] * 48, True),
        ([7] * 47, False),
        (list(range(32)) * 3, True),
        (list(range(32)) * 2, False),
        ([1, 2, 3] * 15 + [1, 2, 4], False),
    ],
)
def test_going_round_in_circles_is_noticed(tokens: list[int], expected: bool) -> None:
    assert repeats(tokens) is expected
