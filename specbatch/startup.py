"""Start-up without garbage collection: what libraries leave behind when they load is not garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Load modules and models with the garbage collector off; it never looks at them afterwards.

    Loading makes hundreds of thousands of objects that live until the end. The collector would look at
    all of them several times on the way and once more when the interpreter ends: about a third of the
    time of ``import torch`` and exit.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
