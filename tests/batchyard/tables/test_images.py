"""Images in cells: what becomes a content part, where it stands among a row's messages, and what is refused."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest

from batchyard.tables import images
from batchyard.tables.cells import CellError
from batchyard.tables.template import Template

pil = pytest.importorskip("PIL.Image")

PNG = b"\x89PNG\r\n\x1a\n rest"
JPEG, GIF, WEBP = b"\xff\xd8\xff rest", b"GIF89a rest", b"RIFF\x00\x00\x00\x00WEBP rest"


def part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def data_url(content: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


@pytest.mark.parametrize(
    ("cell", "urls"),
    [
        (PNG, [data_url(PNG)]),
        (bytearray(JPEG), [data_url(JPEG, "jpeg")]),
        (memoryview(GIF), [data_url(GIF, "gif")]),
        (WEBP, [data_url(WEBP, "webp")]),
        ({"bytes": PNG, "path": "a.png"}, [data_url(PNG)]),
        ([{"bytes": PNG, "path": None}, JPEG], [data_url(PNG), data_url(JPEG, "jpeg")]),
        (np.array([{"bytes": PNG, "path": None}], dtype=object), [data_url(PNG)]),
        ("https://host/a.png", ["https://host/a.png"]),
        ({"url": data_url(PNG)}, [data_url(PNG)]),
    ],
)
def test_a_cell_with_images_becomes_content_parts(cell: Any, urls: list[str]) -> None:
    assert images.parts(cell, "photo") == list(map(part, urls))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK", "P", "F"])
def test_an_image_of_pil_becomes_a_png(mode: str) -> None:
    ((image),) = images.parts(pil.new(mode, (2, 1)), "photo")
    content = base64.b64decode(image["image_url"]["url"].partition(",")[2])
    assert pil.open(io.BytesIO(content)).size == (2, 1)


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (None, "is empty"),
        (float("nan"), "is empty"),
        ("", "is empty"),
        ([], "is empty"),
        ("cats/1.png", "a path is not read"),
        ({"bytes": None, "path": "cats/1.png"}, "a path is not read"),
        (b"%PDF-1.7", "no PNG, JPEG, WebP or GIF"),
        (3, "holds a int, which is no image"),
        (np.zeros((2, 2, 3), np.uint8), "which is no image"),
    ],
)
def test_what_is_no_image_is_refused_with_its_column(cell: Any, reason: str) -> None:
    with pytest.raises(CellError, match=f"^column photo .*{reason}"):
        images.parts(cell, "photo")


def test_a_template_puts_images_between_its_texts() -> None:
    template = Template("See {photo:image}: is it {what}?")
    assert (template.columns, template.images) == (("photo", "what"), ("photo",))
    assert template.fill({"photo": PNG, "what": "red"}) == [text("See "), part(data_url(PNG)), text(": is it red?")]
    assert Template("{photo:image}").fill({"photo": PNG}) == [part(data_url(PNG))]
    with pytest.raises(CellError, match="column photo holds binary data, which is no text; in a template"):
        Template("{photo}").fill({"photo": PNG})


ONE, TWO = {"bytes": PNG, "path": None}, {"bytes": JPEG, "path": None}


@pytest.mark.parametrize(
    ("content", "filled"),
    [
        ("<image>Which?", [part(data_url(PNG)), text("Which?")]),
        ("Which? <image>", [text("Which? "), part(data_url(PNG))]),
        ("Which?", [part(data_url(PNG)), text("Which?")]),
        ([{"type": "image"}, text("Which?")], [part(data_url(PNG)), text("Which?")]),
        ([{"type": "image", "text": None}, {"type": "text", "text": "A"}], [part(data_url(PNG)), text("A")]),
        ([text("Which?")], [part(data_url(PNG)), text("Which?")]),
    ],
)
@pytest.mark.parametrize("columns", [{"images": [ONE]}, {"image": PNG}, {"image": ONE}])
def test_the_images_of_a_row_stand_in_their_places(content: Any, filled: Any, columns: dict[str, Any]) -> None:
    system = {"role": "system", "content": "Be brief."}
    messages = [system, {"role": "user", "content": content}]
    assert images.attached(messages, columns) == [system, {"role": "user", "content": filled}]


@pytest.mark.parametrize("columns", [{}, {"images": None}, {"images": []}, {"images": 3}, {"image": "cats/1.png"}])
def test_a_row_without_images_is_as_it_was(columns: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "Write <image> and <b>."}, {"role": "assistant"}]
    assert images.attached(messages, columns) == messages


@pytest.mark.parametrize(
    ("content", "columns", "reason"),
    [
        ("<image>", {"images": [ONE, TWO]}, "column images holds 2 images, and the messages have 1 <image>"),
        ("Which?", {"images": ["cats/1.png"]}, "column images .*a path is not read"),
        ("<audio>", {"audio": {"bytes": b"RIFF", "path": None}}, "column audio holds audio or video"),
        ("<video>", {"videos": [b"x"]}, "column videos holds audio or video"),
    ],
)
def test_media_that_cannot_be_sent_are_refused_with_their_column(
    content: str, columns: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CellError, match=f"^{reason}"):
        images.attached([{"role": "user", "content": content}], columns)


def test_a_stored_row_has_its_images_as_urls_and_no_other_binary_data() -> None:
    row = {"n": 1, "images": [ONE], "image": TWO, "blob": b"x", "deep": [{"a": b"x"}]}
    assert images.stored(row, ["images", "image"]) == {
        "n": 1,
        "images": [data_url(PNG)],
        "image": data_url(JPEG, "jpeg"),
    }
