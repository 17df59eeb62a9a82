"""Paged tree attention: accuracy, and independence of everything but the keys."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

cpu = pytest.importorskip("specbatch_kernels.cpu")
if not cpu.available():
    pytest.skip(cpu.unavailable_reason(), allow_module_level=True)

from specbatch_kernels.cpu import (  # noqa: E402
    AttentionKeys,
    KvCache,
    ThreadPool,
    paged_attention,
    paged_attention_reference,
)
from specbatch_kernels.cpu.pool import Isa  # noqa: E402

from tests.kernels.isas import ISAS  # noqa: E402

NAN = float("nan")


@dataclass(frozen=True)
class Token:
    """One query: the row it belongs to, its context and the positions of its ancestors."""

    row: int
    context: int
    extra: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rows:
    """Keys and values of some rows in logical order, each [positions, kv_heads, dim]."""

    k: list[torch.Tensor]
    v: list[torch.Tensor]
    heads: int


def make_rows(lengths: list[int], heads: int, kv_heads: int, dim: int, seed: int = 0) -> Rows:
    g = torch.Generator().manual_seed(seed)
    k = [torch.randn(n, kv_heads, dim, generator=g) for n in lengths]
    v = [torch.randn(n, kv_heads, dim, generator=g) for n in lengths]
    return Rows(k, v, heads)


def queries(rows: Rows, tokens: list[Token]) -> torch.Tensor:
    """A query that depends on what the token sees, not on where it stands in the pass."""
    made = []
    for token in tokens:
        seen = token.context + len(token.extra)
        g = torch.Generator().manual_seed(1000 * token.row + seen)
        made.append(torch.randn(rows.heads, rows.k[0].shape[2], generator=g))
    return torch.stack(made)


def layout(rows: Rows, tokens: list[Token], page_size: int, seed: int) -> tuple[KvCache, AttentionKeys]:
    """Scatters the rows over randomly ordered pages; every slot that no position owns is NaN."""
    g = torch.Generator().manual_seed(seed)
    pages = [-(-len(k) // page_size) for k in rows.k]
    spare = int(torch.randint(0, 3, (1,), generator=g))
    order = torch.randperm(sum(pages) + spare, generator=g).int()
    _, kv_heads, dim = rows.k[0].shape
    cache = KvCache(
        torch.full((len(order) * page_size, kv_heads, dim), NAN),
        torch.full((len(order) * page_size, kv_heads, dim), NAN),
        page_size,
    )
    table = torch.full((len(pages), max([*pages, 1])), -1, dtype=torch.int32)
    start = 0
    for row, count in enumerate(pages):
        table[row, :count] = order[start : start + count]
        start += count
        for position in range(len(rows.k[row])):
            slot = int(table[row, position // page_size]) * page_size + position % page_size
            cache.k[slot], cache.v[slot] = rows.k[row][position], rows.v[row][position]
    offsets = torch.tensor([0, *(len(t.extra) for t in tokens)]).cumsum(0).int()
    keys = AttentionKeys(
        page_table=table,
        token_row=torch.tensor([t.row for t in tokens], dtype=torch.int32),
        context_len=torch.tensor([t.context for t in tokens], dtype=torch.int32),
        extra_offsets=offsets,
        extra_positions=torch.tensor([p for t in tokens for p in t.extra], dtype=torch.int32),
    )
    return cache, keys


def attend(
    rows: Rows, tokens: list[Token], pool: ThreadPool, page_size: int = 16, seed: int = 0
) -> torch.Tensor:
    cache, keys = layout(rows, tokens, page_size, seed)
    q = queries(rows, tokens)
    out = torch.full_like(q, NAN)
    paged_attention(q, cache, keys, q.shape[2] ** -0.5, out, pool)
    return out


def reference(rows: Rows, tokens: list[Token]) -> torch.Tensor:
    cache, keys = layout(rows, tokens, 16, 0)
    q = queries(rows, tokens).double()
    out = torch.full_like(q, NAN)
    paged_attention_reference(q, cache, keys, q.shape[2] ** -0.5, out, None)
    return out


@st.composite
def passes(draw: st.DrawFn) -> tuple[Rows, list[Token]]:
    """Rows with prefill runs, plain decoding and trees mixed."""
    kv_heads, group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 5, 7]))
    dim = draw(st.sampled_from([8, 16, 20, 40, 64, 80, 96, 7]))
    lengths = draw(st.lists(st.integers(1, 150), min_size=1, max_size=3))
    tokens = []
    for row, length in enumerate(lengths):
        kind = draw(st.sampled_from(["prefill", "decode", "tree"]))
        if kind == "prefill":
            start = draw(st.integers(0, length - 1))
            tokens += [Token(row, p + 1) for p in range(start, min(length, start + 12))]
        elif kind == "decode":
            tokens.append(Token(row, length))
        else:
            base = draw(st.integers(0, length - 1))
            nodes = st.lists(st.integers(base, length - 1), max_size=6, unique=True)
            tokens += [
                Token(row, base, tuple(extra)) for extra in draw(st.lists(nodes, min_size=1, max_size=9))
            ]
    return make_rows(lengths, kv_heads * group, kv_heads, dim), tokens


@settings(max_examples=40, deadline=None)
@given(passes(), st.sampled_from(ISAS), st.integers(1, 3), st.sampled_from([1, 3, 16, 64]))
def test_close_to_float64_and_writes_every_output(
    case: tuple[Rows, list[Token]], isa: Isa, workers: int, page_size: int
) -> None:
    rows, tokens = case
    with ThreadPool(workers, isa=isa) as pool:
        out = attend(rows, tokens, pool, page_size)
    wanted = reference(rows, tokens)
    assert (out.double() - wanted).abs().max() <= 1e-5 * max(1.0, float(wanted.abs().max()))


@settings(max_examples=30, deadline=None)
@given(passes(), st.sampled_from(ISAS), st.data())
def test_bits_depend_only_on_the_keys(case: tuple[Rows, list[Token]], isa: Isa, data: st.DataObject) -> None:
    """Page size, slots, threads, order of rows and batch mates are all changed at once."""
    rows, tokens = case
    with ThreadPool(1, isa=isa) as one, ThreadPool(data.draw(st.integers(2, 4)), isa=isa) as many:
        together = attend(rows, tokens, one)
        chosen = data.draw(st.lists(st.sampled_from(range(len(tokens))), min_size=1, max_size=8, unique=True))
        some = [tokens[i] for i in chosen]
        other = attend(rows, some, many, data.draw(st.sampled_from([1, 5, 32])), seed=7)
    assert torch.equal(other, together[chosen])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("base", [0, 1, 60, 63, 64, 127, 200])
def test_tree_node_equals_plain_token(isa: Isa, base: int) -> None:
    """The keys of a path stand at other positions of the row, as drafted nodes do, and no bit changes."""
    plain = make_rows([base + 4], heads=6, kv_heads=2, dim=64)
    at = [base + i for i in (2, 5, 3, 9)]
    tree = make_rows([base + 12], heads=6, kv_heads=2, dim=64, seed=1)
    for depth, position in enumerate([*range(base), *at]):
        tree.k[0][position], tree.v[0][position] = plain.k[0][depth], plain.v[0][depth]
    nodes = [Token(0, base, tuple(at[: d + 1])) for d in range(4)] + [Token(0, base, (base, base + 1))]
    with ThreadPool(2, isa=isa) as pool:
        drafted = attend(tree, nodes, pool)
        decoded = torch.cat([attend(plain, [Token(0, base + d + 1)], pool) for d in range(4)])
    assert torch.equal(drafted[:4], decoded)


@pytest.mark.parametrize("isa", ISAS)
def test_prefill_in_one_pass_equals_token_by_token(isa: Isa) -> None:
    rows = make_rows([150], heads=9, kv_heads=3, dim=64)
    tokens = [Token(0, p + 1) for p in range(150)]
    with ThreadPool(2, isa=isa) as pool:
        whole = attend(rows, tokens, pool)
        single = torch.cat([attend(rows, [t], pool) for t in tokens])
    assert torch.equal(whole, single)


@pytest.mark.parametrize("isa", ISAS)
def test_large_scores_and_faraway_keys(isa: Isa) -> None:
    rows = make_rows([140], heads=2, kv_heads=1, dim=16)
    rows.k[0][70:] *= 200
    with ThreadPool(1, isa=isa) as pool:
        out = attend(rows, [Token(0, 140)], pool)
    assert torch.allclose(out.double(), reference(rows, [Token(0, 140)]), atol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
def test_nan_in_a_visible_key_reaches_its_row_only(isa: Isa) -> None:
    rows = make_rows([70, 70], heads=2, kv_heads=1, dim=16)
    rows.k[0][65] = NAN
    with ThreadPool(2, isa=isa) as pool:
        out = attend(rows, [Token(0, 65), Token(0, 66), Token(1, 70)], pool)
    assert [bool(t.isnan().any()) for t in out] == [False, True, False]


def test_token_without_keys_gets_zeros() -> None:
    rows = make_rows([3], heads=2, kv_heads=1, dim=16)
    with ThreadPool(2) as pool:
        assert torch.equal(attend(rows, [Token(0, 0), Token(0, 3)], pool)[0], torch.zeros(2, 16))


def bad_index(**changes: torch.Tensor) -> None:
    rows = make_rows([40], heads=2, kv_heads=1, dim=16)
    tokens = [Token(0, 40), Token(0, 30, (35,))]
    cache, keys = layout(rows, tokens, 16, 0)
    q = queries(rows, tokens)
    with ThreadPool(1) as pool:
        paged_attention(q, cache, replace(keys, **changes), 0.25, torch.empty_like(q), pool)


def test_indices_outside_the_cache_are_refused() -> None:
    def int32(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    bad_index()
    with pytest.raises(ValueError, match="token_row"):
        bad_index(token_row=int32(0, 1))
    with pytest.raises(ValueError, match="context position"):
        bad_index(context_len=int32(49, 30))
    with pytest.raises(ValueError, match="negative"):
        bad_index(context_len=int32(-1, 30))
    with pytest.raises(ValueError, match="extra position"):
        bad_index(extra_positions=int32(48))
    with pytest.raises(ValueError, match="extra_offsets"):
        bad_index(extra_offsets=int32(0, 2, 1))
    with pytest.raises(ValueError, match="context position"):
        bad_index(page_table=int32(0, 1, 1000).reshape(1, 3))
    with pytest.raises(ValueError, match="token_row"):
        bad_index(token_row=torch.zeros(2, dtype=torch.int64))
