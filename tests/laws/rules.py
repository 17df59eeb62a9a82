"""The rule under test and the known wrong ones, with the proposals that go with them.

A step returns the exact law of what it emits, given the draw table, the text so far and the tree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

from specbatch.tree import TokenTree
from specbatch.verify import Verdict, walk
from tests.laws.exact import ONE, Context, Law, Probabilities, Proposals, Step, Table, Toy


def emitted(tree: TokenTree, verdict: Verdict) -> Context:
    assert verdict.bonus is not None
    return (*(int(tree.tokens[node]) for node in verdict.path), verdict.bonus)


def shared_noise(table: Table, context: Context, tree: TokenTree) -> Law:
    """The production rule over the table."""
    verdict = walk(tree, lambda _, path: table[len(context) + len(path), context + path])
    return {emitted(tree, verdict): ONE}


def chain(tokens: Sequence[int]) -> TokenTree:
    return TokenTree.chain(0, tokens, [0.0] * len(tokens))


def siblings(tokens: Sequence[int]) -> TokenTree:
    tree = TokenTree.root(0)
    for token in tokens:
        tree = TokenTree.merge(tree, chain([token]))
    return tree


def ranked(q: Probabilities) -> list[int]:
    return sorted(range(len(q)), key=lambda token: (-q[token], token))


def top_of(q: Probabilities, count: int) -> Proposals:
    """A drafter that always proposes its likeliest tokens."""
    return lambda _table, _context: [siblings(ranked(q)[:count])]


def residual(p: Probabilities, q: Probabilities) -> Probabilities:
    """What rejection sampling draws from after a rejection: (p - q)+, normalised."""
    left = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    return tuple(part / sum(left) for part in left) if any(left) else p


def rejection_against(toy: Toy, q: Probabilities) -> Step:
    """Siblings tested in turn with min(1, p/q), then the residual.

    Right for tokens *sampled* from q (Leviathan et al. 2023; SpecInfer's multi-round form); wrong for
    its likeliest tokens, one or many.
    """

    def step(_table: Table, context: Context, tree: TokenTree) -> Law:
        law: Law = defaultdict(Fraction)
        p, left = toy.p(context), ONE
        for token in tree.tokens[tree.children(0)].tolist():
            accept = min(ONE, p[token] / q[token])
            law[(token,)] += left * accept
            left *= 1 - accept
            p = residual(p, q)
        for token, chance in enumerate(p):
            law[(token,)] += left * chance
        return law

    return step


def fresh_bonus(toy: Toy) -> Step:
    """Where the target's token is not drafted, the bonus is drawn anew instead of being that token."""

    def step(table: Table, context: Context, tree: TokenTree) -> Law:
        (text,) = shared_noise(table, context, tree)
        behind = context + text[:-1]
        return {(*text[:-1], token): chance for token, chance in enumerate(toy.p(behind))}

    return step


def foreseen_unless(dropped: int | None) -> Proposals:
    """A drafter that foresees the target's token, and drops the draft when it is this one."""

    def trees(table: Table, context: Context) -> list[TokenTree]:
        token = table[len(context), context]
        return [chain([]) if token == dropped else chain([token])]

    return trees


def noise_of_the_step(table: Table, context: Context, tree: TokenTree) -> Law:
    """The walk, but with noise numbered from the beginning of the step: every step reads the same."""
    verdict = walk(tree, lambda _, path: table[len(path), context + path])
    return {emitted(tree, verdict): ONE}


def sampled_from(q: Probabilities, step: Step) -> Step:
    """The step on a single token that the drafter samples from ``q`` with noise of its own."""

    def mixture(table: Table, context: Context, _tree: TokenTree) -> Law:
        law: Law = defaultdict(Fraction)
        for token, chance in enumerate(q):
            for text, value in step(table, context, chain([token])).items():
                law[text] += chance * value
        return law

    return mixture


def cosine_criterion(toy: Toy, q: Probabilities, threshold: Fraction) -> Step:
    """A drafted token counts as accepted where p and q point the same way."""

    def step(_table: Table, context: Context, tree: TokenTree) -> Law:
        p = toy.p(context)
        alike = dot(p, q) ** 2 >= threshold**2 * dot(p, p) * dot(q, q)
        return {(int(tree.tokens[1]),): ONE} if alike else {(t,): chance for t, chance in enumerate(p)}

    return step


def dot(a: Probabilities, b: Probabilities) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), start=Fraction(0))


def nucleus(p: Probabilities, top_p: Fraction) -> Probabilities:
    """The likeliest tokens that reach this mass, renormalised."""
    kept: list[int] = []
    for token in ranked(p):
        if sum((p[t] for t in kept), start=Fraction(0)) < top_p:
            kept.append(token)
    mass = sum((p[t] for t in kept), start=Fraction(0))
    return tuple(chance / mass if token in kept else Fraction(0) for token, chance in enumerate(p))


def filtered_after_the_test(filtered: Toy) -> Step:
    """Drafts are tested against the unfiltered law (the table's); only the bonus knows the filter."""

    def step(table: Table, context: Context, tree: TokenTree) -> Law:
        (text,) = shared_noise(table, context, tree)
        if filtered.p(context + text[:-1])[text[-1]]:
            return {text: ONE}
        allowed = enumerate(filtered.p(context + text[:-1]))
        return {(*text[:-1], token): chance for token, chance in allowed}

    return step
