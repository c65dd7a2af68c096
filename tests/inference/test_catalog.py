"""Models of a models.toml, as their engines' classes want them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar
from unittest import mock

import pytest

from batchyard.errors import ConfigurationError
from batchyard.models import ModelSpec, is_derived
from inference import catalog
from inference.engines.echo import Echo
from inference.engines.registry import ENGINES
from tests.support.stacks import ROOT


class Sampler(Echo):
    """A simulated engine that reads a tokenizer, by another name than echo."""

    name: ClassVar[str] = "sampler"
    needs_source: ClassVar[bool] = True
    starts_each_run: ClassVar[bool] = True


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """A place for models.toml, while a package with engine `sampler` is installed."""
    entry = EntryPoint("sampler", f"{__name__}:Sampler", "batchyard.engines")
    with mock.patch.dict(ENGINES.added, {"sampler": entry}):
        yield tmp_path / "models.toml"


def test_any_simulated_engine_must_be_allowed(file: Path) -> None:
    file.write_text(f"[models.a]\nengine='sampler'\nsource='{ROOT}/examples/models/nano'")
    with pytest.raises(
        ConfigurationError, match=r"models\.a: engine sampler gives simulated answers; set BATCHYARD_AL"
    ):
        catalog.load(file)
    assert catalog.load(file, allow_simulated=True)["a"].engine == "sampler"


def test_the_engines_class_says_whether_a_source_is_needed(file: Path) -> None:
    file.write_text("[models.a]\nengine='sampler'\n")
    with pytest.raises(ConfigurationError, match=r"models\.a\.source: missing"):
        catalog.load(file, allow_simulated=True)
    file.write_text("[models.a]\nengine='echo'\nsource='anything'")
    assert catalog.load(file, allow_simulated=True)["a"].source == "anything"


def test_the_engines_class_says_how_many_segments_overlap(file: Path) -> None:
    source = f"source='{ROOT}/examples/models/nano'"
    file.write_text(
        f"[models.a]\nengine='sampler'\n{source}\n[models.b]\nengine='sampler'\nmax_segments=3\n{source}\n"
        "[models.c]\nengine='echo'"
    )
    specs = catalog.load(file, allow_simulated=True)
    assert {name: spec.max_segments for name, spec in specs.items()} == {"a": 1, "b": 3, "c": 2}


def test_an_unknown_engine_is_refused_with_those_of_packages_too(file: Path) -> None:
    file.write_text("[models.a]\nengine='smapler'")
    names = r"'auto', 'vllm', 'vllm-job', 'openai', 'server', 'transformers', 'echo' or 'sampler'"
    expected = rf"models\.a\.engine: must be {names}, not 'smapler'; did you mean 'sampler'\?$"
    with pytest.raises(ConfigurationError, match=expected):
        catalog.load(file)


def test_an_endpoint_that_the_engine_cannot_answer_is_refused_with_those_that_it_can(file: Path) -> None:
    file.write_text('[models.a]\nengine="transformers"\nendpoints=["/pooling"]')
    message = r"models\.a\.endpoints: engine transformers cannot answer /pooling; it can /v1/chat/completions, "
    with pytest.raises(ConfigurationError, match=message):
        catalog.load(file, allow_simulated=True)


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_an_endpoint_for_which_the_model_has_no_head_is_refused_with_those_that_it_has(file: Path, engine: str) -> None:
    entry = f"[models.a]\nengine='{engine}'\nsource='{ROOT}/examples/models/sentiment'\n"
    file.write_text(f"{entry}endpoints=['/v1/chat/completions']")
    message = (
        r"models\.a\.endpoints: BertForSequenceClassification has no answer on /v1/chat/completions; it can .*classify"
    )
    with pytest.raises(ConfigurationError, match=message):
        catalog.load(file)
    file.write_text(f"{entry}endpoints=['/classify']")
    assert catalog.load(file)["a"].endpoints == ("/classify",)


def test_unusable_arguments_are_refused_with_the_file(file: Path) -> None:
    file.write_text("[models.a]\nengine='echo'\nengine_args.latency=1")
    with pytest.raises(ConfigurationError, match=rf"^{file}: models\.a\.engine_args\.latency: .* latency_ms"):
        catalog.load(file, allow_simulated=True)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """A folder with the configuration of an adapter of rank 4."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    return folder


VLLM = f"[models.a]\nengine='vllm'\nsource='{ROOT}/examples/models/nano'\n"


def test_adapters_are_folders_beside_the_file_or_hub_ids(file: Path, adapter: Path) -> None:
    file.write_text(f"{VLLM}adapters.near.source='adapter'\nadapters.hub.source='acme/legal-lora'\n")
    spec = catalog.load(file)["a"]
    assert {name: each.source for name, each in spec.adapters.items()} == {
        "near": str(adapter),
        "hub": "acme/legal-lora",
    }


@pytest.mark.parametrize(
    ("config", "more", "why"),
    [
        (None, "", r"near\.source: .* holds no adapter_config\.json, so it is no adapter folder"),
        ("{", "", r"near\.source: .*adapter_config\.json cannot be read: .*; copy the adapter again"),
        ('{"r": 0}', "", r"near\.source: .* has no rank `r` of 1 or more"),
        ('{"r": 4, "rank_pattern": {"q_proj": 600}}', "", r"near: its rank is 600, and vLLM takes 512 at most; merge"),
        (
            '{"r": 32}',
            "engine_args.max_lora_rank=16",
            r"near: its rank is 32, and engine_args\.max_lora_rank is 16",
        ),
        ('{"r": 4, "peft_type": "IA3"}', "", r"near: it is of kind IA3, and vLLM loads LORA only; merge"),
    ],
)
def test_an_adapter_that_no_start_could_load_is_refused_with_the_file(
    file: Path, adapter: Path, config: str | None, more: str, why: str
) -> None:
    if config is None:
        (adapter / "adapter_config.json").unlink()
    else:
        (adapter / "adapter_config.json").write_text(config)
    file.write_text(f"{VLLM}adapters.near.source='adapter'\n{more}\n")
    with pytest.raises(ConfigurationError, match=rf"models\.a\.adapters\.{why}"):
        catalog.load(file)


@pytest.mark.parametrize(("source", "why"), [("", "missing; name a local"), ("./gone", r"no folder .*/gone; make it")])
def test_an_adapter_that_is_nowhere_is_refused(file: Path, source: str, why: str) -> None:
    file.write_text(f"{VLLM}adapters.near.source='{source}'\n")
    with pytest.raises(ConfigurationError, match=rf"models\.a\.adapters\.near\.source: {why}"):
        catalog.load(file)


def test_an_engine_that_loads_no_adapters_refuses_them_with_one_that_does(file: Path) -> None:
    for engine in ("transformers", "vllm-job", "openai"):
        entry = VLLM.replace("vllm", engine)
        file.write_text(f"{entry}adapters.near.source='adapter'\n")
        message = rf"models\.a\.adapters: engine {engine} cannot load adapters; use engine vllm, or merge each into a"
        with pytest.raises(ConfigurationError, match=message):
            catalog.load(file)


def test_a_change_of_defaults_changes_no_hash(tmp_path: Path) -> None:
    """The hash is the key of measured speeds and of cached answers."""
    file = tmp_path / "models.toml"
    file.write_text(
        "[models.a]\nengine='vllm'\nsource='a/b'\nengine_args.max_model_len=5\n"
        "[models.b]\nengine='vllm-job'\nsource='a/b'\nreplicas=2\nmax_replicas=3\n[models.c]\nengine='echo'"
    )
    specs = catalog.load(file, allow_simulated=True)
    assert {name: spec.config_sha256[:16] for name, spec in specs.items()} == {
        "a": "9cc9cd03e67dab1b",
        "b": "78bd4137e4fe35c3",
        "c": "5857ace8d940f979",
    }


def test_a_derived_model_has_the_name_of_its_base_with_the_hash_of_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text("[models.a]\nengine='echo'")
    base = catalog.load(file, allow_simulated=True)["a"]
    same, other = catalog.derived("a", {"engine": "echo"}), catalog.derived("a", {"engine": "echo", "replicas": 2})
    assert same.name == f"a~{base.config_sha256[:8]}" != other.name
    assert (other.replicas, is_derived(other.name), is_derived("a")) == (2, True, False)
    with pytest.raises(ConfigurationError, match=r"^models\.a\.engine_args\.slot: .* did you mean slots"):
        catalog.derived("a", {"engine": "echo", "engine_args": {"slot": 1}})
    file.write_text(f"[models.'{other.name}']\nengine='echo'")
    with pytest.raises(ConfigurationError, match="choose another name"):
        catalog.load(file, allow_simulated=True)


PRICED = """
currency = "EUR"
[models.a]
engine = "echo"
[models.a.price]
input = 0.15
cached_input = 0.075
output = 0.6
"""


def test_a_price_is_exact_and_no_part_of_the_configurations_hash(file: Path) -> None:
    file.write_text(PRICED)
    priced = catalog.load(file, allow_simulated=True)["a"]
    assert priced.price is not None
    assert priced.price.prices() == ("EUR", 150_000, 75_000, 600_000, 0)
    assert ModelSpec.model_validate(priced.model_dump(mode="json")) == priced, "as a batch keeps it"
    file.write_text("[models.a]\nengine='echo'")
    assert catalog.load(file, allow_simulated=True)["a"].config_sha256 == priced.config_sha256
    file.write_text('currency = "USD"\n[models.a]\nengine = "echo"\nprice.hour = 2')
    by_hour = catalog.load(file, allow_simulated=True)["a"].price
    assert by_hour is not None and by_hour.prices() == ("USD", 0, 0, 0, 2_000_000)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('currency = "EUR"', "", r"models\.a\.price: in no currency; set one above the first table"),
        ('"EUR"', '"euro"', r"currency: not three capital letters"),
        ("[models.a.price]", '[models.a.price]\ncurrency = "EUR"', r"models\.a\.price\.currency: .* set it once"),
        ("output = 0.6", "", r"models\.a\.price: .*input and output go together"),
        ("input = 0.15\n", "", r"models\.a\.price: .*input and output go together"),
        ("output =", "outputs =", r"models\.a\.price\.outputs: unknown key; did you mean output\?"),
        ("0.15", "-1", r"models\.a\.price\.input: -1 is not at least 0"),
        ("0.15", "0.0000001", r"models\.a\.price\.input: .*no more than 6 decimal places"),
        ("0.15", "nan", r"models\.a\.price\.input: NaN is not a finite number"),
        ("[models.a.price]", "[models.b]\nengine = 'echo'\nprice = 3\n[models.a.price]", r"models\.b\.price: "),
        (
            "[models.a]",
            "[hosted.api]\ninput = 1\n[models.a]",
            r"hosted\.api: must be a table with the prices input and",
        ),
        ("[models.a]", "hosted.api = {input = 1, output = -2}\n[models.a]", r"hosted\.api\.output: "),
        ("[models.a]", "hosted = 2\n[models.a]", r"hosted: must be a table"),
    ],
)
def test_an_unusable_price_is_refused_with_its_place(file: Path, old: str, new: str, complaint: str) -> None:
    assert old in PRICED
    file.write_text(PRICED.replace(old, new))
    with pytest.raises(ConfigurationError, match=rf"^{file}: {complaint}"):
        catalog.load(file, allow_simulated=True)


def test_a_guard_that_the_engine_lacks_is_refused(file: Path) -> None:
    file.write_text("[models.a]\nengine='echo'\nguard='repetition'")
    with pytest.raises(ConfigurationError, match=r"models\.a\.guard: engine echo cannot end answers that repeat"):
        catalog.load(file, allow_simulated=True)
    file.write_text("[models.a]\nengine='openai'\nguard='repetition'\nengine_args.endpoints=[{url='http://a/v1'}]")
    assert catalog.load(file)["a"].guard == "repetition"


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (
            "engine='openai'\nengine_args.endpoints=[{url='http://a/v1'}]",
            "its server chooses the requests that run together; remove it",
        ),
        ("engine='server'\ncommand='serve --port {port}'", "its server chooses the requests that run together"),
        ("engine='vllm-job'\nsource='NANO'", "it may run requests together; remove it, or use engine vllm"),
        ("engine='transformers'\nsource='NANO'", "their padding; set engine_args.batch_size = 1"),
        ("engine='transformers'\nsource='NANO'\nengine_args.batch_size=1", None),
        ("engine='vllm'\nsource='NANO'", None),
        ("engine='echo'", None),
    ],
)
def test_a_model_that_cannot_be_reproducible_is_refused(file: Path, entry: str, reason: str | None) -> None:
    entry = entry.replace("NANO", str(ROOT / "examples/models/nano"))
    file.write_text(f"[models.a]\nreproducible=true\n{entry}")
    if reason is None:
        spec = catalog.load(file, allow_simulated=True)["a"]
        assert spec.model_dump()["reproducible"] is True
        assert spec.config_sha256 != spec.model_copy(update={"reproducible": False}).config_sha256
    else:
        with pytest.raises(ConfigurationError, match=rf"models\.a\.reproducible: .*{reason}"):
            catalog.load(file, allow_simulated=True)
