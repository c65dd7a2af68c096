"""Only someone else gives an external verdict."""

from __future__ import annotations

import pytest

from recipes.gates import BUILT_IN
from recipes.gates.answers import MAX_NAME, external_name
from tests.support.gates import ITEM


def test_a_verdict_of_someone_else_needs_a_name_and_is_no_gates_to_give() -> None:
    external = BUILT_IN["external"]
    assert external.check is not None and "not-external" not in BUILT_IN
    external.check("ci")
    with pytest.raises(ValueError, match="needs the name of what gives the verdict, as in external:ci, not ''"):
        external.check("")
    with pytest.raises(ValueError, match="only a Wait gets the verdict of 'ci'"):
        external("x", ITEM, "ci")


@pytest.mark.parametrize("value", ["   ", None, 3, "x" * (MAX_NAME + 1)])
def test_what_is_no_name_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="needs the name of what gives the verdict"):
        external_name(value)


def test_spaces_around_a_name_do_not_count() -> None:
    assert external_name(" ci ") == "ci"
