"""A short report, written once and rendered both as Markdown and as an HTML page."""

import html
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from tensoralg.studies.files import write_text

__all__ = ["Document"]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #8884; text-align: right; }
th:first-child, td:first-child { text-align: left; }
th { border-bottom: 2px solid #888; }
caption { text-align: left; font-style: italic; padding-bottom: .4rem; }
figure { margin: 1.5rem 0; } img { max-width: 100%; background: white; }
figcaption { font-size: .9rem; } code { background: #8882; padding: 0 .25em; }
"""


class Document:
    """A report under construction: paragraphs, lists, tables and figures under headings.

    Text between backticks is code in both renderings; everything else is plain text.

    Parameters
    ----------
    title : str
        Its title.

    Examples
    --------
    >>> from tensoralg.studies.document import Document
    >>> report = Document("Recovery")
    >>> report.table(["method", "error"], [["moments", "0.01"]])
    >>> print(report.to_markdown())
    # Recovery
    <BLANKLINE>
    | method | error |
    |:---|---:|
    | moments | 0.01 |
    <BLANKLINE>
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._markdown = [f"# {_markdown(title)}"]
        self._html = [f"<h1>{_html(title)}</h1>"]

    def heading(self, text: str) -> None:
        """Start a section."""
        self._markdown.append(f"## {_markdown(text)}")
        self._html.append(f"<h2>{_html(text)}</h2>")

    def paragraph(self, text: str) -> None:
        """Add a paragraph."""
        self._markdown.append(_markdown(text))
        self._html.append(f"<p>{_html(text)}</p>")

    def bullets(self, entries: Sequence[str]) -> None:
        """Add a list."""
        self._markdown.append("\n".join(f"- {_markdown(entry)}" for entry in entries))
        items = "".join(f"<li>{_html(entry)}</li>\n" for entry in entries)
        self._html.append(f"<ul>\n{items}</ul>")

    def table(
        self, header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = ""
    ) -> None:
        """Add a table: the first column is text, the others are numbers."""
        if caption:
            self._markdown.append(f"*{_markdown(caption)}*")
        align = "|:---|" + "---:|" * (len(header) - 1)
        lines = [_markdown_row(header), align, *(_markdown_row(row) for row in rows)]
        self._markdown.append("\n".join(lines))
        head = "".join(f"<th>{_html(cell)}</th>" for cell in header)
        body = "".join(
            "<tr>" + "".join(f"<td>{_html(cell)}</td>" for cell in row) + "</tr>\n" for row in rows
        )
        title = f"<caption>{_html(caption)}</caption>" if caption else ""
        self._html.append(
            f"<table>{title}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
        )

    def figure(self, file: str, caption: str) -> None:
        """Add a picture that lies beside the report."""
        self._markdown.append(f"![{_markdown(caption)}]({quote(file)})")
        self._html.append(
            f'<figure><img src="{quote(file)}" alt="{html.escape(caption)}">'
            f"<figcaption>{_html(caption)}</figcaption></figure>"
        )

    def to_markdown(self) -> str:
        """Render as Markdown with tables."""
        return "\n\n".join(self._markdown) + "\n"

    def to_html(self) -> str:
        """Render as one HTML page with its own style and no scripts."""
        body = "\n".join(self._html)
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(self.title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
            f"<body>\n{body}\n</body>\n</html>\n"
        )

    def write(self, folder: Path) -> None:
        """Write ``report.md`` and ``report.html``, each complete or not at all.

        Parameters
        ----------
        folder : Path
            Where they go, beside the figures.
        """
        write_text(folder / "report.md", self.to_markdown())
        write_text(folder / "report.html", self.to_html())


def _markdown(text: str) -> str:
    """Escape what Markdown would read as markup, outside `code`."""
    parts = " ".join(text.split()).split("`")
    parts[::2] = [re.sub(r"([\\*_<>\[\]|#])", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [part.replace("|", r"\|") for part in parts[1::2]]
    return "`".join(parts)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_markdown(cell) for cell in cells) + " |"


def _html(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))
