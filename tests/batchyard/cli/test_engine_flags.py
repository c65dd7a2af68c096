"""Engine flags of `run` become a models file."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchyard.cli import engine_flags
from batchyard.errors import ConfigurationError
from inference import catalog
from tests.support.stacks import ROOT


def test_a_folder_or_a_hub_id_with_engine_flags_becomes_a_models_file(tmp_path: Path) -> None:
    folder = ROOT / "examples/models/nano"
    arguments = {"max_model_len": 256, "dtype": "float32", "trust_remote_code": True}
    spec = catalog.load(engine_flags.models_file(tmp_path, str(folder), arguments))[str(folder)]
    assert spec.source == str(folder)
    assert spec.engine_args == arguments
    assert list(catalog.load(engine_flags.models_file(tmp_path, "org/name", {}))) == ["org/name"]
    with pytest.raises(ConfigurationError, match="neither a model of the models file, nor a folder, nor a hub id"):
        engine_flags.models_file(tmp_path, "nowhere", {})
