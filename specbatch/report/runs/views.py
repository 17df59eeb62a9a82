"""What is shown of some run directories, in each of its forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from specbatch.report.runs.compare import compare
from specbatch.report.runs.figures import report_of
from specbatch.report.runs.html.many_pages import comparison_page, trend_page
from specbatch.report.runs.html.run_page import run_page
from specbatch.report.runs.record import RunRecord
from specbatch.report.runs.show import print_report
from specbatch.report.runs.show_many import print_comparison, print_trend
from specbatch.report.runs.trend import nights


@dataclass(frozen=True, slots=True)
class View:
    """A report.

    Attributes:
        content: For programs; ``kind`` says what it is, ``runs`` holds each run's own report.
        page: Makes the page.
        show: Prints it for people, to stdout.
    """

    content: dict[str, object]
    page: Callable[[], str]
    show: Callable[[], None]


def view_of(records: Sequence[RunRecord], *, side_by_side: bool) -> View:
    """One run, two side by side, or several as a trend.

    Args:
        records: In the order they were named.
        side_by_side: Whether two are compared; the first is the baseline.
    """
    reports = [report_of(record) for record in records]
    runs = [report.as_dict() for report in reports]
    if side_by_side:
        comparison = compare(records[0], records[1])
        return View(
            {"kind": "comparison", "comparison": asdict(comparison), "runs": runs},
            lambda: comparison_page(comparison),
            lambda: print_comparison(comparison),
        )
    if len(reports) == 1:
        return View(
            {"kind": "run", "runs": runs},
            lambda: run_page(reports[0], records[0]),
            lambda: print_report(reports[0]),
        )
    found = nights(reports)
    return View(
        {"kind": "trend", "nights": [asdict(night) for night in found], "runs": runs},
        lambda: trend_page(found),
        lambda: print_trend(found),
    )
