"""The names of vLLM's arguments, as they are read from its source."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from batchyard.errors import ConfigurationError
from inference import catalog
from inference.engines.vllm import internals
from inference.engines.vllm.arguments import argument_names
from tests.support.stacks import ROOT

SOURCE = f"source='{ROOT}/examples/models/nano'"


@pytest.mark.vllm
def test_they_are_the_fields_that_vllm_itself_has() -> None:
    for names in (("AsyncEngineArgs",), ("AsyncEngineArgs", "BaseFrontendArgs")):
        fields = {field.name for name in names for field in dataclasses.fields(getattr(internals, name))}
        assert argument_names(*names) == fields


@pytest.mark.vllm
@pytest.mark.parametrize("engine", ["vllm", "vllm-job"])
def test_a_wrong_name_is_refused_where_the_models_are_read(tmp_path: Path, engine: str) -> None:
    file = tmp_path / "models.toml"
    file.write_text(f"[models.a]\nengine='{engine}'\n{SOURCE}\nengine_args.max_num_seq=32")
    with pytest.raises(ConfigurationError) as caught:
        catalog.load(file)
    assert caught.value.message == (
        f"{file}: models.a.engine_args.max_num_seq: engine {engine} has no such argument; did you mean max_num_seqs?"
    )
    file.write_text(f"[models.a]\nengine='{engine}'\n{SOURCE}\nengine_args.max_num_seqs=32")
    base = catalog.load(file)["a"]
    entry = base.model_dump(mode="json", exclude={"name"})
    with pytest.raises(ConfigurationError, match="max_num_seqs"):  # as `tune` derives a model
        catalog.derived("a", entry | {"engine_args": {"max_num_seq": 32}})


@pytest.mark.vllm
def test_the_check_imports_neither_vllm_nor_torch(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text(f"[models.a]\nengine='vllm'\n{SOURCE}\nengine_args.max_num_seqs=32")
    code = (
        "import sys, pathlib; from inference import catalog; catalog.load(pathlib.Path(sys.argv[1])); "
        "print({'vllm', 'torch'} & sys.modules.keys())"
    )
    result = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.strip() == "set()"
