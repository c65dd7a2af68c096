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
from batchyard.models import ModelSpec, Tariff

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
