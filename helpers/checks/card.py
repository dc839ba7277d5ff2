"""The report card as HTML, for notebooks and for nbgrader's feedback. Its plain-text twin is `Report.message`."""

from __future__ import annotations

from html import escape

from helpers.checks.report import TO_DO, Example, Family, Finding, Report

# JupyterLab's own variables follow its light and dark themes; the values after the comma serve everywhere else.
_TEXT = "color:var(--jp-ui-font-color1,#1f2328)"
_QUIET = "color:var(--jp-ui-font-color1,#424a53)"
_EDGE = {
    "passed": "#1a7f37",
    "partly": "#9a6700",
    "failed": "#b3261e",
    "not written": "#57606a",
    "not judged": "#b3261e",
}
_CODE = "font-family:var(--jp-code-font-family,monospace);font-size:0.92em;white-space:pre-wrap;overflow-wrap:anywhere"


class Card:
    """Shows a report in a notebook."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def __repr__(self) -> str:
        return self.report.message

    def _repr_html_(self) -> str:
        return card_html(self.report)


def card_html(report: Report) -> str:
    """The card as a piece of HTML: no scripts, no style sheet, status in words as well as in colour."""
    parts = [f'<div style="font-weight:600;margin-bottom:4px">{escape(report.headline)}</div>']
    parts += [_finding(finding) for finding in report.findings]
    if report.example:
        parts.append(_example(report.example))
    if report.families and not report.passed:
        parts.append(_families(report.families))
    if report.state == "not written" and not report.notes:
        parts.append(_line(TO_DO))
    parts += [_line(f"Note: {note}" if report.families else note) for note in report.notes]
    return (
        f'<div role="group" aria-label="Report card for {escape(report.exercise, quote=True)}" '
        f'style="border-left:5px solid {_EDGE[report.state]};padding:6px 12px;margin:4px 0;max-width:52em;{_TEXT}">'
        + "".join(parts)
        + "</div>"
    )


def _line(text: str) -> str:
    return f'<div style="margin:3px 0;{_QUIET}">{_with_code(text)}</div>'


def _finding(finding: Finding) -> str:
    link = ""
    if finding.section:
        target = escape(finding.section.replace(" ", "-"), quote=True)
        link = f' Read again: <a href="#{target}">{escape(finding.section)}</a>.'
    return f'<div style="margin:4px 0">{_with_code(finding.text)}{link}</div>'


def _example(example: Example) -> str:
    rows = (*example.inputs, ("expected", example.expected), ("got", example.got))
    cells = "".join(
        f'<tr><th scope="row" style="text-align:left;vertical-align:top;padding:1px 14px 1px 0;font-weight:'
        f'{600 if name in ("expected", "got") else 400};background:transparent">{escape(name)}</th>'
        f'<td style="text-align:left;padding:1px 0;background:transparent;{_CODE}">{escape(text)}</td></tr>'
        for name, text in rows
    )
    return (
        f'<div style="margin-top:6px">Smallest failing case: {_with_code(example.title)}</div>'
        f'<table style="margin:2px 0 6px 0;border-collapse:collapse;border:none">{cells}</table>'
    )


def _families(families: tuple[Family, ...]) -> str:
    rows = "".join(
        f'<li style="margin:1px 0"><b>{"passed" if family.passed else "failed"}</b> {escape(family.title)} '
        f"({family.passed_cases} of {family.cases} cases)</li>"
        for family in families
    )
    return f'<ul style="margin:4px 0 4px 1.2em;padding:0;{_QUIET}">{rows}</ul>'


def _with_code(text: str) -> str:
    """Escaped text in which `...` is set as code."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    return "".join(
        f'<code style="{_CODE}">{escape(piece)}</code>' if number % 2 else escape(piece)
        for number, piece in enumerate(pieces)
    )
