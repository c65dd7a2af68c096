"""An answer is rendered so that it can do nothing but be read."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webapp.pages.rendering import MOST_CHARACTERS, rendered

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
    shown = rendered(text)
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
    assert rendered(text) == (kind, html)


@pytest.mark.parametrize("text", ["", "plain words.", "2 < 3 & 4", '"quoted"', "*" * (MOST_CHARACTERS + 1)])
def test_plain_and_very_long_texts_stay_text(text: str) -> None:
    assert rendered(text) is None


def test_what_looks_like_json_and_is_none_is_still_shown() -> None:
    assert rendered("[1] Smith et al.") is None
    assert rendered("{not json} **bold**") is not None
