"""A registry takes what installed packages add, and names the one that it refuses; a missing one is named, too."""

from __future__ import annotations

from importlib.metadata import Distribution, EntryPoint, EntryPoints, PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from batchyard import plugins
from batchyard.errors import ConfigurationError
from batchyard.plugins import Registry

GROUP = "batchyard.shapes"
CIRCLE, SQUARE, NAMELESS = {"name": "circle"}, {"name": "square"}, object()


class Package(Distribution):
    """An installed package with entry points."""

    def __init__(self, name: str, **values: str) -> None:
        self._name = name
        self.points = [EntryPoint(key, value, GROUP)._for(self) for key, value in values.items()]  # type: ignore[attr-defined]

    @property
    def name(self) -> str:
        return self._name

    def read_text(self, filename: str) -> str | None:
        return None

    def locate_file(self, path: Any) -> Path:
        return Path(path)


def checked(shape: Any) -> tuple[str, dict[str, str]]:
    if not isinstance(shape, dict):
        raise TypeError("is no shape")
    return shape["name"], shape


@pytest.fixture
def registry(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Registry[dict[str, str]]:
    """A registry of shapes with the packages of the test's parameter installed."""
    packages: list[Package] = getattr(request, "param", [])
    points = EntryPoints(point for package in packages for point in package.points)
    monkeypatch.setattr(plugins, "entry_points", lambda **where: points.select(**where))
    return Registry("shape", GROUP, {"circle": f"{__name__}:CIRCLE"}, checked)


def test_a_built_in_name_is_imported_when_it_is_looked_up(registry: Registry[dict[str, str]]) -> None:
    assert registry.get("circle") is CIRCLE
    assert registry.names() == ["circle"]


def test_an_unknown_name_is_refused_with_the_nearest(registry: Registry[dict[str, str]]) -> None:
    with pytest.raises(ConfigurationError, match=r"^no shape is named 'cirkle'; did you mean circle\?$"):
        registry.get("cirkle")


@pytest.mark.parametrize("registry", [[Package("corners", square=f"{__name__}:SQUARE")]], indirect=True)
def test_a_package_adds_a_name(registry: Registry[dict[str, str]]) -> None:
    assert registry.get("square") is SQUARE
    assert registry.names() == ["circle", "square"]
    assert registry.load() == [CIRCLE, SQUARE]


@pytest.mark.parametrize(
    ("registry", "says"),
    [
        ([Package("round", circle="round:CIRCLE")], "package round: entry point 'circle' .* built-in shape; .* uninst"),
        ([Package("a", square="a:A"), Package("b", square="b:B")], "packages a and b: both .* 'square' .* uninstall"),
        ([Package("p", square="nowhere:A")], "package p: entry point 'square = nowhere:A' .*: ModuleNotFoundError: .*"),
        ([Package("p", square=f"{__name__}:MISSING")], "package p: .* cannot be loaded: AttributeError: .*; repair or"),
        ([Package("p", square=f"{__name__}:NAMELESS")], "package p: entry point .* is no shape; repair or uninstall p"),
        ([Package("p", square=f"{__name__}:CIRCLE")], "package p: .* calls itself 'circle'; give both the same name"),
    ],
    indirect=["registry"],
    ids=["built-in", "twice", "no module", "no attribute", "no shape", "another name"],
)
def test_a_broken_entry_point_is_refused_with_its_package_and_the_remedy(
    registry: Registry[dict[str, str]], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        registry.get("square")


@pytest.mark.parametrize("extra", plugins.EXTRAS)
def test_what_needs_a_package_that_is_missing_says_which_command_installs_it(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError) as refusal:
        plugins.require(extra, "this")
    assert str(refusal.value).startswith("this needs ")
    assert str(refusal.value).endswith(f", which is not installed here: pip install 'batchyard[{extra}]'")


def test_an_extra_that_is_installed_is_not_missed() -> None:
    plugins.require("math", "reward 'math'")


def test_a_clone_without_the_server_is_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins.require_server()
    monkeypatch.setattr(plugins, "distribution", _nothing)
    with pytest.raises(ConfigurationError, match=r"`batchyard up` needs .* batchyard-server, .*: make install$"):
        plugins.require_server("`batchyard up`")


def _nothing(name: str) -> Distribution:
    raise PackageNotFoundError(name)
