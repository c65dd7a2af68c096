"""Drawings are well-formed whatever their titles say."""

from __future__ import annotations

from xml.etree import ElementTree

from recipes.reports.svg import LABEL, drawing, shortened


def test_a_title_is_text_in_the_drawing_and_for_readers_of_screens() -> None:
    root = ElementTree.fromstring(drawing('a "b" <c> & d', ['<circle r="4"/>'], 50))
    assert root.get("aria-label") == 'a "b" <c> & d'
    assert (root.get("height"), root.findtext("{*}text")) == ("50", 'a "b" <c> & d')
    assert root.find("{*}circle") is not None


def test_a_long_label_ends_with_an_ellipsis() -> None:
    assert shortened("a" * LABEL) == "a" * LABEL
    assert shortened("a" * 50) == "a" * (LABEL - 1) + "…"
