"""What is expected of drafts that nobody has made yet."""

from __future__ import annotations

import numpy as np

from specbatch.draft.base import TreeShape
from specbatch.policy.forecast import FULL, Forecast
from specbatch.policy.forest import Drafts
from specbatch.tree import TokenTree
from tests.policy.world import row


def test_what_went_deeper_because_it_was_free_is_expected_of_no_chain() -> None:
    """Others of the same step were asked for more: their lengths are averaged with none of it."""
    deep, short = (TokenTree.chain(0, range(1, count + 1), [-0.1] * count) for count in (6, 3))
    rows = [row(0), row(1)]
    whole, cut = Forecast(), Forecast()
    for _ in range(20):
        for forecast, first in ((whole, deep), (cut, deep.first(2))):
            drafts = Drafts([first, short], rows, np.zeros(len(first) + len(short), dtype=np.int64))
            forecast.observe(FULL, drafts, np.full(len(drafts.sources), 0.9), [2, 4])
    for shape in (TreeShape(2, 1, 2), TreeShape(4, 1, 4, free_levels=6), TreeShape(6, 1, 6)):
        found, wanted = (forecast.table([shape, shape], rows) for forecast in (whole, cut))
        np.testing.assert_array_equal(found, wanted)
        assert found.shape == (2, shape.levels)
