"""An answer is rendered so that it can do nothing but be read."""

from __future__ import annotations

import cProfile
import pstats
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webapp.pages.rendering import MOST_CELLS, MOST_CHARACTERS, MOST_LINES, Rendered, rendered

TAGS = {
    *("p", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code", "em", "strong", "s", "a", "br", "hr"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
ATTRIBUTES = {"href", "title", "rel", "class", "start", "dir"}
PIECES = [
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "![x](http://a.example/b.png)", "<!--", "-->"),
    *("[a](javascript:alert(1))", "[a](JaVaScRiPt:alert(1))", "[a](data:text/html,x)", "[a](/cancel)", "<b>"),
    *("[a](http://b.example 'title\"onclick=')", "<http://c.example>", "<javascript:alert(1)>", "[a]: vbscript:x\n"),
    *("```html onload=x\n<b>\n```\n", "`<i>`", "|a|b|\n|:-|-:|\n|<u>|x|\n", "# h\n", "> q\n", "- [ ] x\n", "1. y\n"),
    *("&lt;svg onload=alert(1)&gt;", "\\<", '"', "'", "\0", "\u202e", "\n\n", "    ", "**", "_", "~~", "[", "](", ")"),
]


MOST_CALLS, MOST_EXPANDED = 2_000_000, 20
"""The most calls that the texts of one page may take, about 0.5 s, and the most that HTML is longer than they are."""
HOSTILE = {
    "cells that rows leave out": "|a" * 300 + "|\n" + "|-" * 300 + "|\n" + "x\n" * 24_000,
    "tables below each other": ("|a" * 300 + "|\n" + "|-" * 300 + "|\n" + "x\n" * 220 + "\n") * 8,
    "a table of many columns": "|a" * 8000 + "|\n" + "|-" * 8000 + "|\n" + "x\n" * 1000,
    "lazy lines of nested quotes": "> " * 100 + "a\n" + "b\n" * 20_000,
    "nested lists": "".join("  " * depth + "- x\n" for depth in range(200)),
    "lists": "* a\n" * 12_000,
    "emphasis": "_a" * 25_000,
    "emphasis within emphasis": "*a **" * 10_000,
    "links": "[a](http://b) " * 3500,
    "brackets": "[a](" * 4900,
    "one long reference, used often": "[a]: http://b/" + "c" * 20_000 + "\n\n" + "[a]" * 4900,
    "headings": "# a\n" * 12_000,
    "backticks": "".join("`" * number + " " for number in range(1, 316)),
    "entities": "&#x41;" * 8000,
    "many lists in JSON": "[" + "1," * 20_000 + "1]",
}


def one(text: str) -> Rendered | None:
    """The only text of a page."""
    return rendered([text])[0]


class Elements(HTMLParser):
    """The elements of some HTML, each with its attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=12).map("".join))
def test_nothing_hostile_becomes_an_element(text: str) -> None:
    shown = one(text)
    for tag, attributes in Elements("" if shown is None else str(shown.html)).elements:
        assert tag in TAGS, tag
        assert set(attributes) <= ATTRIBUTES, attributes
        if tag == "a":
            assert (attributes["href"] or "").lower().startswith(("http://", "https://"))
            assert attributes["rel"] == "noopener noreferrer nofollow"


@pytest.mark.parametrize(
    ("text", "kind", "html"),
    [
        (
            "# Title\n\n* one\n* **two**",
            "Markdown",
            "<h4>Title</h4>\n<ul>\n<li>one</li>\n<li><strong>two</strong></li>\n</ul>\n",
        ),
        (
            "```python\nprint('<b>')\n```",
            "Markdown",
            "<pre><code class=\"language-python\">print('&lt;b&gt;')\n</code></pre>\n",
        ),
        ('{"a": ["ä", 1]}', "JSON", '<pre dir="auto">{\n  &#34;a&#34;: [\n    &#34;ä&#34;,\n    1\n  ]\n}</pre>'),
    ],
)
def test_markdown_code_and_json_are_rendered(text: str, kind: str, html: str) -> None:
    assert one(text) == (kind, html)


@pytest.mark.parametrize(
    "text",
    ["", "plain words.", "2 < 3 & 4", '"quoted"', "*a*" * (MOST_CHARACTERS // 3 + 1), "* a\n" * (MOST_LINES + 1)],
    ids=lambda text: text[:10],
)
def test_plain_and_very_long_texts_stay_text(text: str) -> None:
    assert one(text) is None


@pytest.mark.long
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("split", [1, 20])
def test_no_texts_of_a_page_take_long_to_render(name: str, split: int) -> None:
    text = HOSTILE[name]
    size = len(text) // split
    texts = [text] * 20 if split == 1 else [text[:size]] * 100
    profile = cProfile.Profile()
    shown = profile.runcall(rendered, texts)
    assert pstats.Stats(profile).total_calls < MOST_CALLS  # type: ignore[attr-defined]
    assert len(shown) == len(texts)
    assert sum(len(each.html) for each in shown if each) < MOST_EXPANDED * MOST_CHARACTERS


def test_texts_are_rendered_as_far_as_the_page_has_room_for_them() -> None:
    long, short = "*a* " * (MOST_CHARACTERS // 5), "**b**"
    first, second, third = rendered([long, long, short])
    assert first is not None and second is None
    assert third == ("Markdown", "<p><strong>b</strong></p>\n")


def test_a_table_of_many_cells_is_shown_as_text_and_all_else_is_rendered() -> None:
    def table(columns: int, rows: int) -> str:
        return "|a" * columns + "|\n" + "|-" * columns + "|\n" + ("|c" * columns + "|\n") * rows

    small = table(8, 100)
    shown = one(f"# b\n\n{table(200, MOST_CELLS // 200)}\n{small}")
    assert shown is not None and shown.html.count("<table>") == 1
    assert shown.html.count("<td>") == 800 and shown.html.startswith("<h4>b</h4>")


def test_what_looks_like_json_and_is_none_is_still_shown() -> None:
    assert one("[1] Smith et al.") is None
    assert one("{not json} **bold**") is not None
