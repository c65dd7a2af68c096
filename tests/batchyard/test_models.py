"""Entries of models.toml: what is written is read again, what it says of a model is its key, and prices are exact."""

from __future__ import annotations

import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard import models
from batchyard.errors import ConfigurationError
from batchyard.models import Adapter, ModelSpec, Tariff

TEXT = st.text(st.characters(exclude_categories=("Cs",)))
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT.filter(bool), inner, max_size=3),
    max_leaves=6,
)


@given(TEXT.filter(bool), st.dictionaries(TEXT.filter(bool), VALUES, max_size=4))
def test_an_entry_that_is_written_is_read_as_it_was(name: str, arguments: dict[str, Any]) -> None:
    entry = {"engine": "vllm", "source": 'C:\\models\n"x"', "replicas": 2, "engine_args": arguments}
    document = tomllib.loads(models.written(name, entry | {"num_gpus": None}))
    expected = entry if arguments else {key: value for key, value in entry.items() if key != "engine_args"}
    assert document == {"models": {name: expected}}


def test_a_price_changes_nothing_that_was_measured_and_any_other_field_does() -> None:
    spec = ModelSpec(name="m", engine="echo")
    priced = ModelSpec(name="m", engine="echo", price=Tariff(currency="EUR", hour=Decimal(1)))
    assert priced.config_sha256 == spec.config_sha256
    changed = [{"replicas": 2}, {"source": "x"}, {"engine_args": {"a": 1}}, {"max_in_flight": 3}, {"name": "n"}]
    hashes = {ModelSpec(**{"name": "m", "engine": "echo", **fields}).config_sha256 for fields in changed}
    assert len(hashes | {spec.config_sha256}) == len(changed) + 1


def test_requests_name_models_and_their_adapters_and_adapters_change_the_hash_only_where_there_are_some() -> None:
    plain = ModelSpec(name="m", engine="echo")
    adapted = ModelSpec(name="m", engine="echo", adapters={"m-b": Adapter(), "m-a": Adapter(source="x")})
    assert "adapters" not in plain.model_dump() and adapted.config_sha256 != plain.config_sha256
    served = models.served_by_name({"m": adapted, "n": ModelSpec(name="n", engine="echo")})
    assert {name: spec.name for name, spec in served.items()} == {"m": "m", "m-b": "m", "m-a": "m", "n": "n"}


@pytest.mark.parametrize(
    ("name", "why"),
    [("b", "models.b has this name"), ("a", "models.a has this name"), ("x~01234567", "no adapter can have this name")],
)
def test_an_adapter_has_a_name_that_nothing_else_has(tmp_path: Path, name: str, why: str) -> None:
    file = tmp_path / "models.toml"
    file.write_text(f"[models.a]\nengine='echo'\n[models.b]\nengine='echo'\n[models.b.adapters.'{name}']\n")
    with pytest.raises(ConfigurationError, match=rf"models\.b\.adapters\.{name}: {why}; choose another name"):
        models.read(file)
    file.write_text("[models.a]\nadapters.same.source='x'\n[models.b]\nadapters.same.source='y'\n")
    with pytest.raises(ConfigurationError, match=r"models\.a\.adapters\.same has this name"):
        models.read(file)


def test_a_file_may_begin_with_the_byte_order_mark_of_windows(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text("[models.'é']\r\nengine='echo'\r\n", "utf-8-sig")
    assert list(models.read(tmp_path / "models.toml")) == ["é"]


def test_a_derived_model_has_a_name_that_no_entry_can_have(tmp_path: Path) -> None:
    name = models.derived_name(ModelSpec(name="m", engine="echo"))
    assert models.is_derived(name) and not models.is_derived("m")
    file = tmp_path / "models.toml"
    file.write_text(models.written(name, {"engine": "echo"}))
    with pytest.raises(ConfigurationError, match="choose another name"):
        models.read(file)


def test_requests_in_a_replica_are_twice_its_capacity_unless_said() -> None:
    assert ModelSpec(name="m", engine="echo").in_flight(10) == 20
    assert ModelSpec(name="m", engine="echo", max_in_flight=3).in_flight(10) == 3


def test_prices_are_whole_millionths_and_cached_input_costs_as_input_unless_said() -> None:
    tariff = Tariff(currency="EUR", input=Decimal("0.15"), output=Decimal("0.000001"))
    assert tariff.prices() == ("EUR", 150_000, 150_000, 1, 0)
    cheaper = Tariff(currency="EUR", input=Decimal(1), cached_input=Decimal(0), output=Decimal(2), hour=Decimal("0.5"))
    assert cheaper.prices() == ("EUR", 1_000_000, 0, 2_000_000, 500_000)


@pytest.mark.parametrize("price", [{"input": 1}, {"cached_input": 1}, {}, {"hour": "0.0000001"}, {"hour": -1}])
def test_a_price_that_says_too_little_or_too_much_is_refused(price: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"price|input|hour|Tariff"):
        Tariff(currency="EUR", **price)
