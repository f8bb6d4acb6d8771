"""Show a report as a page: one HTML file that loads nothing, for browsers, screen readers and printers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from scoreline.judging.diagram import reliability_diagram
from scoreline.judging.evaluation import better
from scoreline.terminal.judgement import DIGITS, interval_text

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; }
main { max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3, p, li { overflow-wrap: anywhere; }
table { border-collapse: collapse; margin: 1rem 0; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { border: 1px solid #8a8a8a; padding: .3rem .6rem; text-align: left; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
thead th { background: #eef1f5; }
td.right { background: #e3f2e6; }
.scroll { overflow-x: auto; }
.scroll:focus { outline: 3px solid #1a4f9c; }
svg { max-width: 100%; height: auto; }
summary { cursor: pointer; }
"""

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
"""


def report_page(report: Mapping[str, Any]) -> str:
    """Return the page of a report."""
    title = f"What the scores of {report['file']} are worth"
    parts = [_HEAD.format(title=escape(title), style=_STYLE), report_summary(report)]
    parts += [_system(number, system, report) for number, system in enumerate(report["systems"])]
    return "\n".join([*parts, "</main>\n</body>\n</html>\n"])


def report_summary(report: Mapping[str, Any]) -> str:
    """Return the beginning of the page, which compares the systems, as a part of a page."""
    parts = [_summary(report), _metrics(report), *(_difference(pair) for pair in report["differences"])]
    return "\n".join(parts)


def _summary(report: Mapping[str, Any]) -> str:
    lines = [
        f"<p>{report['rows']:,} rows in {report['clusters']:,} independent groups, judged by the column "
        f"<code>{escape(report['truth'])}</code>. Intervals are of 95 %, from a bootstrap over the groups.</p>"
    ]
    if report["warnings"]:
        items = "".join(f"<li>{escape(warning)}</li>" for warning in report["warnings"])
        lines.append(f"<h2>What to keep in mind</h2>\n<ul>{items}</ul>")
    return "\n".join(lines)


def _metrics(report: Mapping[str, Any]) -> str:
    systems = report["systems"]
    rows = [[name, *(interval_text(system["metrics"][name]) for system in systems)] for name in systems[0]["metrics"]]
    headings = ["metric", *(system["name"] for system in systems)]
    return "<h2>Metrics</h2>\n" + _table("Each metric of each system, with its interval", headings, rows)


def _difference(pair: Mapping[str, Any]) -> str:
    rows = []
    for name, figure in pair["metrics"].items():
        is_better = better(name, figure)
        verdict = "may be chance" if is_better is None else "better" if is_better else "worse"
        detectable = figure["detectable"]
        rows.append([name, interval_text(figure), verdict, "–" if detectable is None else f"{detectable:.{DIGITS}f}"])
    caption = f"{pair['system']} less {pair['base']}, on the same rows"
    headings = ["metric", "difference", f"{pair['system']} is", "smallest difference that this file can show"]
    return f"<h2>{escape(pair['system'])} and {escape(pair['base'])}</h2>\n" + _table(caption, headings, rows)


def _system(number: int, system: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    if "confusion" not in system:  # a ranking
        return ""
    name, labels = system["name"], report["labels"]
    what = f"the probability of {labels[0]}" if len(labels) == 2 else "the probability of the answer"
    bins = [
        [f"{one['predicted']:.{DIGITS}f}", f"{one['observed']:.{DIGITS}f}", f"{one['rows']:,}"]
        for one in system["reliability"]
    ]
    counts = [[label, *(f"{count:,}" for count in row)] for label, row in zip(labels, system["confusion"], strict=True)]
    unit = next(iter(system["worst"][0])) if system["worst"] else ""
    worst = [
        [str(one[unit]), one["truth"], one["answer"], f"{one['probability']:.{DIGITS}f}", one["text"] or "–"]
        for one in system["worst"]
    ]
    parts = [
        f"<h2>{escape(name)}</h2>",
        "<h3>Reliability</h3>",
        f"<p>If {escape(what)} can be believed, every point lies on the line: eight in ten of the rows with 0.8 "
        "come true.</p>",
        reliability_diagram(f"reliability-{number}", f"Reliability of {name}", system["reliability"]),
        "<details><summary>The diagram as a table</summary>",
        _table(f"Reliability of {name}", ["predicted", "observed", "rows"], bins, has_row_headings=False),
        "</details>",
        _order_flips(system["order_flips"]),
        "<h3>Confusion</h3>",
        _table(f"Answers of {name} by the true label", ["true label", *labels], counts, diagonal=True),
        "<h3>The worst rows</h3>",
    ]
    if worst:
        headings = [unit, "true label", "answer", "its probability", "text"]
        parts.append(_table(f"Wrong answers of {name} of which it was most sure", headings, worst))
    else:
        parts.append("<p>No answer is wrong.</p>")
    return "\n".join(parts)


def _order_flips(flips: Mapping[str, float] | None) -> str:
    if flips is None:
        return ""
    return (
        "<h3>Order of the options</h3>\n"
        f"<p>In {flips['rows']:.1%} of the rows, an order of the options has another answer than all orders together; "
        f"of all orders, {flips['orders']:.1%} have.</p>"
    )


def _table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    has_row_headings: bool = True,
    diagonal: bool = False,
) -> str:
    """Return a table, which scrolls by itself where it is too wide. diagonal: cell n of row n is a right answer."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    lines = []
    for number, row in enumerate(rows):
        cells = []
        for place, cell in enumerate(row):
            if place == 0 and has_row_headings:
                cells.append(f'<th scope="row">{escape(cell)}</th>')
            else:
                kind = "number" if cell[:1].isdigit() or cell[:1] in "-–" else ""
                kind += " right" if diagonal and place == number + 1 else ""
                cells.append(f'<td class="{kind.strip()}">{escape(cell)}</td>' if kind else f"<td>{escape(cell)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">\n'
        f"<table><caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n"
        + "\n".join(lines)
        + "\n</tbody></table></div>"
    )
