"""Which head a model drafts with, and the drafter around it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specbatch_kernels.cpu import PackedMatrix, ThreadPool
from torch import Tensor

from specbatch.draft.base import TreeShape
from specbatch.draft.head import HeadDrafter
from specbatch.draft.head_runner import HeadRunner, compile_head, torch_head
from specbatch.draft.head_weights import HeadWeights, read_head_config
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles

SHIPPED = Path(__file__).parent / "heads"
"""Heads that come with the package, each for one target."""


def find_head(files: ModelFiles, explicit: Path | None = None, shipped: Path = SHIPPED) -> Path | None:
    """Where the head for a model is.

    Args:
        files: The target.
        explicit: What the user chose; taken as it is.
        shipped: Directory of heads that say which target they were trained for.

    Returns:
        A path for :func:`specbatch.draft.head_weights.load_head`; ``None`` when there is none.

    Raises:
        ModelError: A shipped head is damaged.
    """
    if explicit is not None:
        return explicit
    for path in sorted(shipped.glob("*.safetensors")):
        if read_head_config(path).target_digest == files.digest:
            return path
    return None


@dataclass(frozen=True, slots=True)
class TargetParts:
    """What a head drafter shares with its target.

    Attributes:
        config: Shape of the target.
        embedding: Its token embedding: packed for the compiled kernels, or ``[vocab, hidden]`` on the
            device where the head is to compute.
        pool: Threads of the compiled kernels; ``None`` without them.
        num_pages: Pages of its K/V store.
        page_size: Tokens in a page.
    """

    config: ModelConfig
    embedding: PackedMatrix | Tensor
    pool: ThreadPool | None
    num_pages: int
    page_size: int


def build_head_drafter(weights: HeadWeights, target: TargetParts, rows: int, shape: TreeShape) -> HeadDrafter:
    """Make a head ready to draft.

    Args:
        weights: The head; the target must report ``weights.config.captured``.
        target: What it works with.
        rows: Rows that draft at the same time, at most.
        shape: The largest tree the policy asks for; larger ones are drafted in several batches.
    """
    runner: HeadRunner
    if isinstance(target.embedding, PackedMatrix):
        assert target.pool is not None, "packed weights need the threads of the compiled kernels"
        runner = compile_head(weights, target.config, target.embedding, target.pool)
    else:
        runner = torch_head(weights, target.config, target.embedding)
    scratch = rows * scratch_pages(shape, target.page_size)
    return HeadDrafter(runner, target.num_pages, target.page_size, max(2, scratch))


def scratch_pages(shape: TreeShape, page_size: int) -> int:
    """Pages that the expanded nodes of one row's tree take, and one entry its own pages may not hold."""
    expanded = (shape.levels - 1) * min(shape.width, shape.nodes)
    return -(-(expanded + 1) // page_size)
