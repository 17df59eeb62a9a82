"""One row's tree while a head grows it: where its nodes are stored, and what they cost."""

from __future__ import annotations

import math

import numpy as np

from specbatch.draft.base import DraftRequest, TreeShape
from specbatch.draft.head_beam import Beam, Floats, Ints
from specbatch.draft.head_entries import Entries
from specbatch.draft.head_weights import HeadConfig
from specbatch.tree import TokenTree


def drafted_levels(request: DraftRequest, places: int, page_size: int, positions: int) -> int:
    """Levels for which the row has places and the head has positions.

    Args:
        request: The row and what is asked for.
        places: Entries that the row's own and scratch pages hold together.
        page_size: Entries in a page.
        positions: Positions that an entry can stand at.
    """
    row, shape = request.row, request.shape
    free = places - max(row.committed, len(row.pages) * page_size)
    expanded = max(0, free) // min(shape.width, shape.nodes)
    return min(shape.levels, 1 + expanded, positions - row.committed + 1)


class Growth:
    """A tree, the places of its expanded nodes, and its account.

    Args:
        index: Row of the page table.
        request: The row and what is asked for.
        levels: Levels that can be drafted.
        page_size: Entries in a page.
        origin: First position of the row that the head sees.

    Attributes:
        levels: Those that can be drafted.
        committed: Tokens of the row.
        token: The last of them.
        least: Log of the probability of a path below which a chain need not go on.
        place: Row position at which the next expanded node is stored.
        failed: The head's output was not finite.
        passes: Passes the row took part in.
        flops: Operations of its entries.
    """

    def __init__(self, index: int, request: DraftRequest, levels: int, page_size: int, origin: int) -> None:
        self.index, self.row, self._origin = index, request.row, origin
        self.width = request.shape.width
        self.temperature = request.row.prompt.params.temperature
        self.failed, self.passes, self.flops = False, 0, 0.0
        self.levels, self.committed = levels, request.row.committed
        self.least = math.log(request.shape.least) if request.shape.least > 0.0 else -math.inf
        self.place = max(len(request.row.pages) * page_size, self.committed)
        self._stream = request.stream
        shape = TreeShape(levels, request.shape.width, request.shape.nodes)
        self.token = request.row.token(self.committed - 1)
        self._beam = Beam(self.token, shape, self.temperature > 0)
        self._lineages: dict[int, list[int]] = {0: []}
        self._states: dict[int, int] = {}

    @property
    def size(self) -> int:
        """Nodes to be expanded next; none when the tree is complete."""
        return len(self._beam.frontier)

    @property
    def depth(self) -> int:
        """Depth of the nodes to be expanded next."""
        return self._beam.depth

    def noise(self, depth: int) -> int:
        """Stream state (as a signed word) for the candidates of a node at a depth; 0 for a greedy row."""
        state = self._stream.state(self.committed + depth) if self.temperature > 0 else 0
        return state - (1 << 64) if state >> 63 else state

    @property
    def produced(self) -> int:
        """Candidates so far."""
        return self._beam.produced

    def tree(self) -> TokenTree:
        """What has grown."""
        return self._beam.tree()

    def take(self, candidates: tuple[Ints, Floats, Floats], first_state: int) -> None:
        """Hang the candidates of the frontier into the tree and move the frontier down.

        Args:
            candidates: Ids, log probabilities and scores, ``[frontier, width or more]``.
            first_state: Index of the state that the pass gave back for the frontier's first node.
        """
        expanded, ids = self._beam.frontier, candidates[0]
        self._states = {node: first_state + i for i, node in enumerate(expanded)}
        if np.any(ids[:, 0] < 0):
            self.failed = True
            self._beam.frontier = []
            return
        self._beam.grow(*candidates)

    def add_frontier(self, entries: Entries) -> list[int]:
        """Add the frontier's entries to a pass; the state that each continues."""
        beam, states = self._beam, []
        for node in beam.frontier:
            parent = beam.parent(node)
            lineage = self._lineages[node] = [*self._lineages[parent], self.place]
            self.place += 1
            position = self.committed - 1 + beam.depth
            entries.add_node(self.index, beam.token(node), position, self.committed, lineage)
            states.append(self._states[parent])
        return states

    def charge_text(self, config: HeadConfig, count: int, first: int) -> None:
        """Account for the pass of ``count`` committed tokens from position ``first``; the last predicts."""
        self.passes += 1
        self.flops += self.text_flops(config, count, first - self._origin) + _head_flops(config)

    def charge_nodes(self, config: HeadConfig, count: int, depth: int) -> None:
        """Account for the pass of ``count`` nodes at a depth."""
        self.passes += 1
        keys = self.committed - self._origin + depth
        self.flops += count * (_entry_flops(config) + _key_flops(config) * keys + _head_flops(config))

    @staticmethod
    def text_flops(config: HeadConfig, count: int, first: int) -> float:
        """Operations of entries behind ``first`` others, without the LM head; a multiply-add is two."""
        fusing = 2.0 * len(config.captured) * config.hidden**2
        keys = count * first + count * (count + 1) / 2
        return count * (fusing + _entry_flops(config)) + _key_flops(config) * keys


def _entry_flops(config: HeadConfig) -> float:
    """Of the layer's matrices."""
    d, heads = config.hidden, config.heads * config.head_dim
    pair = heads + 2 * config.kv_heads * config.head_dim
    return 2.0 * (2 * d * pair + heads * d + 3 * d * config.intermediate)


def _head_flops(config: HeadConfig) -> float:
    """Of one entry's logits."""
    return 2.0 * config.hidden * config.draft_vocab


def _key_flops(config: HeadConfig) -> float:
    """Of one entry's scores and mixing, per key."""
    return 4.0 * config.heads * config.head_dim
