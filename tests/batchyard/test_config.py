"""Configuration files, flags and overrides of a recipe's options, and where each value comes from."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from batchyard import config
from batchyard.config import Schema
from batchyard.errors import ConfigurationError
from batchyard.recipes import Options


class Sampling(BaseModel):
    model_config = ConfigDict(extra="forbid")
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float | None = None
    stop: str | list[str] | None = None


class Agent(BaseModel):
    model_config = ConfigDict(extra="forbid")
    role: str
    model: str | None = None


class Panel(Options):
    model: str
    n: int = Field(1, ge=1, le=9)
    sampling: Sampling = Field(default_factory=Sampling)
    reward: str | dict[str, Any] | None = None
    agents: list[str | Agent] = Field(["DEV", "QA"])
    keep: Literal["all", "best"] = "all"
    judge: Agent | None = None
    notes: list[str] = Field(default_factory=list)


SAMPLING = {"temperature": 1.0, "top_p": None, "stop": None}
SCHEMA = Schema(Panel.model_json_schema())


def resolved(*files: Path, overrides: list[str]) -> dict[str, Any]:
    """Return what the server would be sent."""
    layers = [layer for file in files for layer in config.files(SCHEMA, file)]
    layers += [config.override(SCHEMA, text) for text in overrides]
    return config.options(config.resolve(SCHEMA, layers))


def write(folder: Path, **contents: str) -> list[Path]:
    """Write files such as `base_yaml` into a folder."""
    files = [folder / name.replace("_", ".") for name in contents]
    for file, content in zip(files, contents.values(), strict=True):
        file.write_text(content)
    return files


def merged(below: Any, above: Any) -> Any:
    """Merge as simply as can be: mappings by key, all else is replaced."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return copy.deepcopy(above)
    return {**below, **{key: merged(below.get(key), value) for key, value in above.items()}}


_names = st.sampled_from(["a", "b", "c"])
_scalars = st.none() | st.booleans() | st.integers() | st.floats(-1e6, 1e6) | st.sampled_from(["x", "two words"])
_values = st.recursive(
    _scalars | st.lists(_scalars, max_size=3), lambda inner: st.dictionaries(_names, inner, max_size=3), max_leaves=6
)


@given(st.lists(st.tuples(st.lists(_names, min_size=1, max_size=3), _values), max_size=8))
def test_overrides_in_order_make_what_a_naive_merge_of_mappings_makes(steps: list[tuple[list[str], Any]]) -> None:
    anything = Schema({"properties": {"a": {}, "b": {}, "c": {}}, "type": "object"})
    layers, expected = [], {}
    for keys, value in steps:
        text = value if isinstance(value, str) else json.dumps(value)
        layers.append(config.override(anything, f"{'.'.join(keys)}={text}"))
        nested = value
        for key in reversed(keys):
            nested = {key: nested}
        expected = merged(expected, nested)
    assert config.options(config.resolve(anything, layers)) == expected


def test_files_apply_left_to_right_over_what_they_extend_and_under_overrides(tmp_path: Path) -> None:
    write(tmp_path, base_toml="model = 'nano'\nn = 2\nagents = ['DEV', 'DATA']\n[sampling]\ntemperature = 0.5\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/first.yaml").write_text("extends: ../base.toml\nn: 3\nsampling: {top_p: 0.9}\n")
    (second,) = write(tmp_path, second_json='{"agents": ["QA"], "keep": "best"}')
    assert resolved(tmp_path / "inner/first.yaml", second, overrides=["sampling.temperature=1e-1"]) == {
        "model": "nano",
        "n": 3,
        "sampling": {"temperature": 0.1, "top_p": 0.9, "stop": None},
        "agents": ["QA"],
        "keep": "best",
    }


@pytest.mark.parametrize(("name", "text"), [("a.toml", "n = 3"), ("a.json", '{"n": 3}'), ("a.yaml", "n: 3")])
def test_a_file_may_begin_with_the_byte_order_mark_of_windows(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(f"{text}\r\n", "utf-8-sig")
    assert resolved(tmp_path / name, overrides=["model=nano"])["n"] == 3


def test_every_value_knows_where_it_comes_from(tmp_path: Path) -> None:
    write(tmp_path, base_yaml="model: nano\nsampling.temperature: 0.5")
    (child,) = write(tmp_path, child_yaml="extends: base.yaml\nsampling: {top_p: 0.9}")
    layers = [*config.files(SCHEMA, child), config.flag(SCHEMA, "n", "4")]
    layers.append(config.override(SCHEMA, "keep=best"))
    origins = {
        config.name_of(setting.keys): (setting.origin.kind, Path(setting.origin.name).name)
        for setting in config.resolve(SCHEMA, layers)
    }
    assert origins["retries"] == ("default", "default")
    assert origins["model"] == ("file", "base.yaml")
    assert origins["sampling.temperature"] == ("file", "base.yaml")
    assert origins["sampling.top_p"] == ("file", "child.yaml")
    assert origins["sampling.stop"] == ("default", "default")
    assert "notes" not in origins  # a schema does not have the default of such a field
    assert origins["n"] == ("flag", "--n")
    assert origins["keep"] == ("override", "keep=best")


def test_interpolation_sees_what_other_layers_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_MODEL", "mini")
    (file,) = write(
        tmp_path,
        a_yaml="""
            model: ${oc.env:ACME_MODEL}
            judge: {role: "${agents.0} of ${n}", model: "${model}"}
            sampling: {stop: ["${keep}", '\\${keep}']}
        """,
    )
    values = resolved(file, overrides=["n=7", "keep=best"])
    assert values["judge"] == {"role": "DEV of 7", "model": "mini"}
    assert values["sampling"] == SAMPLING | {"stop": ["best", "${keep}"]}


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("model=123", {"model": "123"}),
        ("system=Be brief: always # so", {"system": "Be brief: always # so"}),
        ("system=null", {"system": None}),
        ("sampling.stop=[a, b]", {"sampling": SAMPLING | {"stop": ["a", "b"]}}),
        ("sampling.stop=5", {"sampling": SAMPLING | {"stop": "5"}}),
        ("agents=[DEV, {role: QA, model: mini}]", {"agents": ["DEV", {"role": "QA", "model": "mini"}]}),
        ("reward.openai/gsm8k=exact", {"reward": {"openai/gsm8k": "exact"}}),
        ("reward[org/set-1.5]=exact", {"reward": {"org/set-1.5": "exact"}}),
    ],
)
def test_the_schema_says_how_a_text_of_the_command_line_is_read(override: str, values: dict[str, Any]) -> None:
    assert resolved(overrides=["model=m", override]) == {"model": "m"} | values


def test_names_that_are_the_users_own_may_have_dots_in_files(tmp_path: Path) -> None:
    (file,) = write(tmp_path, a_yaml="model: m\nreward: {org/set-1.5: exact}\nsampling.top_p: 0.5")
    assert resolved(file, overrides=[])["reward"] == {"org/set-1.5": "exact"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sampling: {temprature: 1}", "a.yaml: sampling.temprature: unknown key; did you mean sampling.temperature?"),
        ("judge: {role: QA, modl: m}", "a.yaml: judge.modl: unknown key; did you mean judge.model?"),
        ("n: many", 'a.yaml: n: "many" is not a whole number, at least 1, at most 9'),
        ("n: 10", "a.yaml: n: 10 is not a whole number, at least 1, at most 9"),
        ("n: true", "a.yaml: n: true is not a whole number, at least 1, at most 9"),
        ("keep: worst", 'a.yaml: keep: "worst" is not one of all, best'),
        ("sampling: 5", "a.yaml: sampling: 5 is not an object"),
        ("agents: [DEV, 5]", "a.yaml: agents.1: 5 is not a text, or an object"),
        ("judge: {model: m}", 'a.yaml: judge: {"model": "m"} has no role'),
        ("model: ???", "a.yaml: model: it is ??? there, so set it in another file or by a flag"),
        ("model: ${nope}", "a.yaml: model: Interpolation key 'nope' not found"),
        ("model: ${model}", "a.yaml: model: Recursive interpolation detected"),
        ("model: ${oc.env:NO_SUCH}", "a.yaml: model: \"Environment variable 'NO_SUCH' not found\""),
        ("sampling.temperature: ${n}\nn: 3", "a.yaml: sampling.temperature: 3 is not a number, at least 0, at most 2"),
        ("n: .inf", "a.yaml: n: inf is no number of JSON"),
        ("reward: {1: exact}", "a.yaml: reward.1: the key 1 is no text; put it in quotes"),
        ("a..b: 1", "a.yaml: 'a..b' is no key; write it as in sampling.temperature"),
        ("n: 1\nn: 2", "a.yaml: while constructing a mapping line 1, column 1 found duplicate key n line 2, column 1"),
        ("[DEV]", "a.yaml: it holds no mapping of options"),
        ("5", "a.yaml: it holds no mapping of options"),
        ("extends: [b.yaml]", 'a.yaml: extends: ["b.yaml"] is not the name of a file'),
        ("extends: none.yaml", "none.yaml: No such file or directory"),
        ("extends: a.txt", "a.txt: a configuration file is named .yaml, .yml, .toml, .json"),
        ("extends: a.yaml", "a.yaml: a.yaml extends a.yaml: a file cannot extend itself"),
    ],
)
def test_an_error_names_file_and_key_and_what_is_wanted(
    content: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, a_yaml=content)
    with pytest.raises(ConfigurationError) as error:
        resolved(Path("a.yaml"), overrides=[] if content.startswith("model") else ["model=m"])
    assert error.value.message == message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("n", "n: write KEY=VALUE"),
        ("=5", "=5: '' is no key; write it as in sampling.temperature"),
        ("nn=5", "nn=5: unknown key; did you mean n?"),
        (
            "sampling.temperature=hot",
            'sampling.temperature=hot: "hot" is not a number, at least 0',
        ),
        ("sampling.temperature=.nan", "sampling.temperature=.nan: sampling.temperature: nan is no number of JSON"),
        ("reward={1: exact}", "reward={1: exact}: reward.1: the key 1 is no text; put it in quotes"),
        ("keep=${nope", "keep=${nope: no viable alternative at input '${nope'"),
    ],
)
def test_an_error_names_the_override(override: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        resolved(overrides=["model=m", override])
    assert error.value.message.startswith(message)


def test_what_has_no_default_is_missed_unless_the_configuration_is_only_looked_at() -> None:
    with pytest.raises(ConfigurationError, match="model is missing: set it in a file, by a flag, or with model=VALUE"):
        config.resolve(SCHEMA, [])
    assert ("n",) in [setting.keys for setting in config.resolve(SCHEMA, [], complete=False)]


def test_a_mapping_that_is_a_default_is_sent_whole_once_a_part_of_it_is_set() -> None:
    """A server takes an option as it is sent: what it lacks would not come from the default."""

    class Prompts(Options):
        prompts: dict[str, str] = Field({"ask": "Ask", "judge": "Judge"})

    schema = Schema(Prompts.model_json_schema())
    settings = config.resolve(schema, [config.override(schema, "prompts.ask=Please")])
    assert config.options(settings) == {"prompts": {"ask": "Please", "judge": "Judge"}}


def test_lists_are_written_with_commas_repeated_or_in_brackets() -> None:
    assert SCHEMA.read_list(("agents",), ["DEV,QA", "DATA"]) == ["DEV", "QA", "DATA"]
    assert SCHEMA.read_list(("agents",), ["[DEV, {role: QA}]"]) == ["DEV", {"role": "QA"}]
