"""Pieces of pages. Everything that comes from a run is escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from specbatch.report.runs.html.style import COLOURS, STYLE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What a browser may fetch for a page: nothing."""


def paragraph(content: str, kind: str = "") -> str:
    """A paragraph."""
    return f"<p{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{escape(content)}</p>"


def table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table that scrolls by itself where it is wider than the page.

    Args:
        caption: What it shows.
        headings: Of the columns.
        rows: Cells; the first of each names its row.
        words: Columns at the left that hold words; the others hold numbers.
    """
    head = "".join(_cell("th", name, place < words, ' scope="col"') for place, name in enumerate(headings))
    body = "".join(
        "<tr>"
        + f'<th scope="row">{escape(row[0])}</th>'
        + "".join(_cell("td", cell, place < words) for place, cell in enumerate(row[1:], 1))
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(name: str, content: str, words: bool, more: str = "") -> str:
    kind = ' class="words"' if words else ""
    return f"<{name}{kind}{more}>{escape(content)}</{name}>"


def cards(entries: Sequence[tuple[str, str, str]]) -> str:
    """Numbers to be seen first: name, number, and what it means."""
    told = "".join(
        f'<div class="card"><dt>{escape(name)}</dt><dd class="big">{escape(value)}</dd>'
        f'<dd class="dim">{escape(meaning)}</dd></div>'
        for name, value, meaning in entries
    )
    return f'<dl class="cards">{told}</dl>'


def notes(title: str, lines: Sequence[str]) -> str:
    """Things that somebody should know; nothing where there are none."""
    if not lines:
        return ""
    listed = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<div class="notes" role="note"><strong>{escape(title)}</strong><ul>{listed}</ul></div>'


def figures(drawings: Sequence[tuple[str, str]]) -> str:
    """Drawings beside each other, as many as fit, each with a caption."""
    told = "".join(
        f"<figure>{drawn}<figcaption>{escape(caption)}</figcaption></figure>" for drawn, caption in drawings
    )
    return f'<div class="figures">{told}</div>' if drawings else ""


def section(title: str, *parts: str) -> str:
    """A part of the page with a heading; nothing where it would be empty."""
    content = "".join(parts)
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def document(title: str, *parts: str) -> str:
    """A whole page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{STYLE}{COLOURS}</style></head>'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )
