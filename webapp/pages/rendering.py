"""Answers rendered: Markdown and JSON as HTML that can do nothing but be read.

HTML in Markdown stays text, images are not loaded, links lead to http and https only, and no element has a style
attribute, which the Content-Security-Policy would refuse.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock, table
from markdown_it.token import Token
from markupsafe import Markup

from batchyard import json_lines

MOST_CHARACTERS, MOST_LINES, MOST_BRACKETS, MOST_CELLS = 50_000, 2_000, 5_000, 10_000
"""Limits of what one page renders, in less than 0.5 s.

The time for brackets left open grows with their square, that for a table with its columns times its lines.
"""
_LINE_END = re.compile(r"\r\n?|\n")
_MAX_NESTING = 20
"""Lists and quotes within each other: each line may belong to all of them."""
_MAX_ENCODED = 12
"""Characters that one of a URL takes, such as %F0%9F%98%80."""


class Rendered(NamedTuple):
    """An answer as HTML, and whether it was `Markdown` or `JSON`."""

    kind: str
    html: Markup


class _Markdown(MarkdownIt):
    def validateLink(self, url: str) -> bool:
        return url.lower().startswith(("http://", "https://"))


def _link_open(renderer: RendererHTML, tokens: Sequence[Token], index: int, *rest: Any) -> str:
    tokens[index].attrSet("rel", "noopener noreferrer nofollow")
    return renderer.renderToken(tokens, index, *rest)


def _cell_open(renderer: RendererHTML, tokens: Sequence[Token], index: int, *rest: Any) -> str:
    aligned = str(tokens[index].attrs.pop("style", "")).removeprefix("text-align:")
    if aligned:
        tokens[index].attrSet("class", aligned)
    return renderer.renderToken(tokens, index, *rest)


def _heading(renderer: RendererHTML, tokens: Sequence[Token], index: int, *rest: Any) -> str:
    tokens[index].tag = f"h{min(6, int(tokens[index].tag[1]) + 3)}"  # below the headings of the page
    return renderer.renderToken(tokens, index, *rest)


@dataclass
class _Allowance:
    """What the texts of a page may have that are still to be rendered."""

    characters: int = MOST_CHARACTERS
    lines: int = MOST_LINES
    brackets: int = MOST_BRACKETS
    cells: int = MOST_CELLS

    def covers(self, text: str) -> bool:
        """Take a text from the allowance. Return False if it is too large."""
        characters, lines, brackets = len(text), len(_LINE_END.findall(text)) + 1, text.count("[")
        if characters > self.characters or lines > self.lines or brackets > self.brackets:
            return False
        self.characters, self.lines, self.brackets = (
            self.characters - characters,
            self.lines - lines,
            self.brackets - brackets,
        )
        return True


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse a table unless it has more cells than the page may have. It has one for each column in each line."""
    if not table(state, start, end, silent=True):
        return False
    allowance: _Allowance = state.env["allowance"]
    columns = state.src.count("|", state.bMarks[start], state.eMarks[start]) + 1
    last = next((line for line in range(start, end) if state.isEmpty(line)), end)
    if columns * (last - start) > allowance.cells:
        return False
    if silent:
        return True
    table(state, start, end, silent=False)
    allowance.cells -= columns * (state.line - start)
    return True


def _parser() -> MarkdownIt:
    parser = _Markdown("js-default", {"html": False, "linkify": False, "maxNesting": _MAX_NESTING}).disable("image")
    parser.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})
    parser.add_render_rule("link_open", _link_open)
    for name in ("th_open", "td_open"):
        parser.add_render_rule(name, _cell_open)
    for name in ("heading_open", "heading_close"):
        parser.add_render_rule(name, _heading)
    return parser


_PARSER = _parser()


def rendered(texts: Iterable[str]) -> list[Rendered | None]:
    """Return the texts of a page as HTML; None for one that is plain, or for which the limits leave no room."""
    allowance = _Allowance()
    return [_rendered(text, allowance) if allowance.covers(text) else None for text in texts]


def _rendered(text: str, allowance: _Allowance) -> Rendered | None:
    if not text.strip():
        return None
    if text.lstrip()[0] in "{[":
        try:
            value = json_lines.loads(text)
        except orjson.JSONDecodeError:
            pass
        else:
            indented = json.dumps(value, ensure_ascii=False, indent=2)
            return Rendered("JSON", Markup('<pre dir="auto">{}</pre>').format(indented))
    env = {"allowance": allowance}
    tokens = _PARSER.parse(text, env)
    inline = (child for token in tokens for child in token.children or ())
    if sum(len(str(value)) for token in inline for value in token.attrs.values()) > _MAX_ENCODED * len(text):
        return None  # references to long URLs
    html = _PARSER.renderer.render(tokens, _PARSER.options, env)
    if html.strip() == f"<p>{escapeHtml(text.strip())}</p>":
        return None
    return Rendered("Markdown", Markup(html))
