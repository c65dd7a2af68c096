"""Answers rendered: Markdown and JSON as HTML that can do nothing but be read.

HTML in Markdown stays text (CommonMark's `html` is off), images are not loaded, links lead to http and https only, and
no element has a style attribute, which the Content-Security-Policy would refuse.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping, Sequence
from typing import Any, NamedTuple

import orjson
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict
from markupsafe import Markup

from batchyard import json_lines

MOST_CHARACTERS, MOST_BRACKETS = 50_000, 5_000
"""Limits of a text that is rendered, in about 0.1 s. The time for brackets left open grows with their square."""


class Rendered(NamedTuple):
    """An answer as HTML, and whether it was `Markdown` or `JSON`."""

    kind: str
    html: Markup


class _Markdown(MarkdownIt):
    def validateLink(self, url: str) -> bool:
        return url.lower().startswith(("http://", "https://"))


def _link_open(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: MutableMapping[str, Any]
) -> str:
    tokens[index].attrSet("rel", "noopener noreferrer nofollow")
    return renderer.renderToken(tokens, index, options, env)


def _cell_open(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: MutableMapping[str, Any]
) -> str:
    aligned = str(tokens[index].attrs.pop("style", "")).removeprefix("text-align:")
    if aligned:
        tokens[index].attrSet("class", aligned)
    return renderer.renderToken(tokens, index, options, env)


def _heading(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: MutableMapping[str, Any]
) -> str:
    tokens[index].tag = f"h{min(6, int(tokens[index].tag[1]) + 3)}"  # below the headings of the page
    return renderer.renderToken(tokens, index, options, env)


def _parser() -> MarkdownIt:
    parser = _Markdown("js-default", {"html": False, "linkify": False}).disable("image")
    parser.add_render_rule("link_open", _link_open)
    for name in ("th_open", "td_open"):
        parser.add_render_rule(name, _cell_open)
    for name in ("heading_open", "heading_close"):
        parser.add_render_rule(name, _heading)
    return parser


_PARSER = _parser()


def rendered(text: str) -> Rendered | None:
    """Return a text as HTML; None if it is plain, or beyond the limits."""
    if not text.strip() or len(text) > MOST_CHARACTERS or text.count("[") > MOST_BRACKETS:
        return None
    if text.lstrip()[0] in "{[":
        try:
            value = json_lines.loads(text)
        except orjson.JSONDecodeError:
            pass
        else:
            return Rendered("JSON", Markup('<pre dir="auto">{}</pre>').format(_shown(value)))
    html = _PARSER.render(text)
    if html.strip() == f"<p>{escapeHtml(text.strip())}</p>":
        return None
    return Rendered("Markdown", Markup(html))


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
