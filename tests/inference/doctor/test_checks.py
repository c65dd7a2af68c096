"""What is said of models before a batch waits for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from batchyard.errors import ConfigurationError
from inference.doctor import checks
from inference.doctor.folder import Finding
from inference.doctor.memory import GIB, Machine, weights_bytes
from tests.support.stacks import ROOT

NANO = ROOT / "examples/models/nano"
LARGE = Machine(64 * GIB)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder that a test may spoil."""
    return Path(shutil.copytree(NANO, tmp_path / "model"))


def checked(tmp_path: Path, text: str, machine: Machine = LARGE, **options: float) -> dict[tuple[str, str], Finding]:
    file = tmp_path / "models.toml"
    file.write_text(text)
    findings = checks.check(file, allow_simulated=True, machine=machine, **options)  # type: ignore[arg-type]
    return {(finding.model, finding.check): finding for finding in findings}


def entry(folder: Path, name: str = "a", more: str = "") -> str:
    return f"[models.{name}]\nengine='transformers'\nsource='{folder}'\n{more}\n"


def test_a_good_model_passes_every_check(tmp_path: Path, folder: Path) -> None:
    findings = checked(tmp_path, entry(folder))
    assert {check for _, check in findings} == {"engine_args", "folder", "tokenizer", "chat template", "memory"}
    assert {finding.result for finding in findings.values()} == {"ok"}


def test_every_entry_is_checked_though_others_cannot_be_used(tmp_path: Path, folder: Path) -> None:
    text = entry(folder, "a", "engine_args.batchsize=1") + "[models.b]\nengine='vlm'\n" + entry(folder, "c")
    findings = checked(tmp_path, text)
    wrong = findings["a", "engine_args.batchsize"]
    assert (wrong.result, wrong.remedy) == ("failed", "did you mean batch_size?")
    assert "must be 'auto'" in findings["b", "engine"].detail
    assert findings["c", "memory"].result == "ok"


def test_a_folder_without_a_tokenizer_or_with_a_broken_one_fails(tmp_path: Path, folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    assert "cannot be read" in checked(tmp_path, entry(folder))["a", "tokenizer"].detail
    (folder / "tokenizer.json").unlink()
    finding = checked(tmp_path, entry(folder))["a", "tokenizer"]
    assert finding.result == "failed" and "tokenizer.json" in finding.remedy


def test_a_model_for_chats_without_a_template_is_warned_of(tmp_path: Path, folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    assert checked(tmp_path, entry(folder))["a", "chat template"].result == "warning"
    completions = checked(tmp_path, entry(folder, more="endpoints=['/v1/completions']"))
    assert ("a", "chat template") not in completions


def test_adapters_are_checked_down_to_their_weights(tmp_path: Path, folder: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"r": 4}')
    text = entry(folder).replace("transformers", "vllm") + "[models.a.adapters.b]\nsource='{}'\n"
    finding = checked(tmp_path, text.format(adapter))["a", "adapter b"]
    assert finding.result == "failed" and "adapter_model.safetensors" in finding.detail
    (adapter / "adapter_model.safetensors").touch()
    finding = checked(tmp_path, text.format(adapter))["a", "adapter b"]
    assert (finding.result, finding.detail) == ("ok", f"rank 4, {adapter}")
    finding = checked(tmp_path, text.format("acme/legal-lora"))["a", "adapter b"]
    assert finding.result == "warning" and "hf download acme/legal-lora" in finding.remedy
    finding = checked(tmp_path, text.format("./gone"))["a", "adapters.b.source"]
    assert finding.result == "failed" and finding.remedy.startswith("make it")


def test_memory_that_is_not_there_is_warned_of_for_one_model_and_for_all(tmp_path: Path, folder: Path) -> None:
    weights = weights_bytes(folder, None)
    assert weights is not None and weights_bytes(folder, "float32") == 2 * weights
    text = entry(folder) + entry(folder, "b")
    assert checked(tmp_path, text, Machine(weights - 1))["a", "memory"].result == "warning"
    enough_for_one = checked(tmp_path, text, Machine(weights + 1))
    assert enough_for_one["b", "memory"].result == "ok"
    assert enough_for_one["(all)", "memory"].result == "warning"
    assert ("(all)", "memory") not in checked(tmp_path, text)
    (folder / "model.safetensors").unlink()
    assert checked(tmp_path, entry(folder))["a", "memory"].result == "failed"


@pytest.mark.vllm
def test_on_gpus_the_weights_have_to_leave_memory_for_the_cache(tmp_path: Path, folder: Path) -> None:
    text = entry(folder).replace("transformers", "vllm")
    assert checked(tmp_path, text, Machine(GIB, (80 * GIB,)))["a", "memory"].result == "ok"
    assert checked(tmp_path, text, Machine(GIB, (2**20,)))["a", "memory"].result == "warning"
    two = text + "engine_args.tensor_parallel_size=2"
    assert checked(tmp_path, two, Machine(GIB, (80 * GIB,)))["a", "memory"].result == "failed"


@pytest.mark.long
def test_a_start_answers_at_each_endpoint_or_says_why_not(tmp_path: Path) -> None:
    text = (
        "[models.good]\nengine='echo'\nendpoints=['/v1/chat/completions', '/v1/embeddings']\n"
        "[models.broken]\nengine='echo'\nengine_args.start_error='no kernel image is available'\n"
        "[models.dying]\nengine='echo'\nendpoints=['/v1/completions']\nengine_args.die_on='Once upon'\n"
        "[models.refusing]\nengine='echo'\nendpoints=['/v1/completions']\nengine_args.fail_every=1\n"
    )
    findings = checked(tmp_path, text, start_seconds=240.0)
    for check in ("start", "/v1/chat/completions", "/v1/embeddings"):
        assert findings["good", check].result == "ok"
    assert "no kernel image is available" in findings["broken", "start"].detail
    assert (findings["dying", "start"].result, findings["refusing", "/v1/completions"].result) == ("failed", "failed")
    assert "its process ended" in findings["dying", "start"].detail


@pytest.mark.long
def test_a_start_that_hangs_ends(tmp_path: Path) -> None:
    text = "[models.a]\nengine='echo'\nengine_args.hang_on='Say hello'\n"
    finding = checked(tmp_path, text, start_seconds=1.0)["a", "start"]
    assert (finding.result, finding.detail) == ("failed", "not within 1 s")


def test_a_name_that_the_file_does_not_have_is_refused_with_those_it_has(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "models.toml").write_text(entry(folder))
    with pytest.raises(ConfigurationError, match=r"no model 'b'; there are: a"):
        list(checks.check(tmp_path / "models.toml", allow_simulated=True, only=("b",)))
