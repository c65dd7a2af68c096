"""The registry finds what a folder and packages add, and names the file and the line of what it refuses."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from batchyard.cli.main import cli
from batchyard.errors import ConfigurationError, RequestError
from batchyard.recipes import Answer, Failure, Item
from batchyard.recipes.program import play
from batchyard.settings import Settings
from recipes import registry
from recipes.registry import COMMANDS
from recipes.rewards import LINEAR
from tests.support.rewards import CATALOGUE
from tests.support.stacks import ROOT

DEBATE = '''\
from pydantic import Field
from batchyard.recipes import Ask, Failure, Flow, Item, Options, Result, gate, recipe, reward

class Debate(Options):
    model: str
    judge: str
    n: int = Field(3, ge=2, le=9)

@recipe("debate", Debate, stages=("argue", "judge"))
def debate(item: Item, options: Debate) -> Flow:
    """Let models argue, and one judge."""
    answers = yield [Ask("argue", item.chat(), model=options.model, temperature=0.8) for _ in range(options.n)]
    texts = [answer.text for answer in answers if answer.ok]            # some failing is fine
    if not texts:
        return item.failed("no_answer")                                 # all failing is not
    numbered = "\\n\\n".join(f"[{number}] {text}" for number, text in enumerate(texts))
    question = item.chat(f"Which answer is best?\\n\\n{numbered}")
    choice = [str(number) for number in range(len(texts))]
    (verdict,) = yield [Ask("judge", question, model=options.judge, choice=choice)]
    if not verdict.ok:
        return item.stuck("judge_failed", candidates=texts)             # for a person
    return Result(text=texts[int(verdict.text)], votes=len(texts))

@reward("acme", data_sources=("acme/qa",), columns=("reward_model.ground_truth",))
def acme(data_source, solution_str, ground_truth, extra_info=None) -> float | dict:
    last = solution_str.strip().splitlines()[-1:] or [""]
    return {"score": float(last[0] == ground_truth), "pred": last[0]}

@gate("no-apology")
def no_apology(text, item, value) -> Failure | None:
    return Failure("style", "Do not apologise.") if "sorry" in text.lower() else None
'''
A_REWARD = """\
from batchyard.recipes import reward

@reward("{name}", data_sources={data_sources})
def judge(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "debate.py").write_text(DEBATE)
    return tmp_path


def test_a_file_in_the_folder_adds_its_recipe_its_reward_and_its_gate(folder: Path) -> None:
    catalogue = registry.load(str(folder))
    item = Item(7, "item-7", {"prompt": "Tea or coffee?"})
    assert catalogue.recipe("debate").summary == "Let models argue, and one judge."
    assert catalogue.sha256("debate") == hashlib.sha256(DEBATE.encode()).hexdigest()
    assert catalogue.reward("acme")("acme/qa", "because\n42", "42") == {"score": 1.0, "pred": "42"}
    assert catalogue.reward_for("acme/qa") is catalogue.reward("acme")
    assert catalogue.reward_for("another") is None
    assert catalogue.gate("no-apology")("Sorry!", item) == Failure("style", "Do not apologise.")


def test_what_editors_and_file_systems_leave_in_the_folder_is_no_recipe(folder: Path) -> None:
    (folder / ".#debate.py").symlink_to("me@host.4711:1")  # Emacs' lock
    for name in ("._debate.py", "._tools.mcp.json", ".debate.py.swp", "debate.py~"):  # macOS on other disks, Vim, Emacs
        (folder / name).write_bytes(b"\0\5\26\7")
    assert "debate" in registry.load(str(folder)).recipes


def test_a_change_of_any_file_of_a_built_in_recipe_is_seen() -> None:
    files = {path.name: path.read_bytes() for path in sorted((ROOT / "recipes/panel").glob("*.py"))}
    assert {"events.py", "flow.py", "options.py"} <= files.keys()
    assert registry.load(None).sha256("panel") == hashlib.sha256(b"".join(files.values())).hexdigest()


def test_a_recipe_of_the_folder_can_be_played(folder: Path) -> None:
    debate = registry.load(str(folder)).recipe("debate")
    options = debate.options(model="mini", judge="big")
    answers = iter(["tea", Answer(ok=False), "coffee", "1"])
    item = Item(7, "item-7", {"prompt": "Tea or coffee?"})
    result = play(debate, item, options, lambda request: next(answers))
    assert (result.text, result.values) == ("coffee", {"votes": 2})


def test_files_of_the_folder_may_import_each_other(folder: Path) -> None:
    (folder / "again.py").write_text("from .debate import acme, no_apology\nAGAIN = acme\n")
    assert registry.load(str(folder)).reward("acme").name == "acme"


def test_an_unknown_name_is_refused_with_the_nearest_and_the_parameter(folder: Path) -> None:
    catalogue = registry.load(str(folder))
    with pytest.raises(RequestError, match=r"^No recipe is named 'debat'\. Did you mean 'debate'\?$") as refused:
        catalogue.recipe("debat")
    assert (refused.value.param, refused.value.code) == ("recipe", "recipe_not_found")
    with pytest.raises(RequestError, match="Did you mean 'acme'") as refused:
        catalogue.reward("acne")
    assert refused.value.param == "options.reward"
    with pytest.raises(RequestError, match="Did you mean 'no-apology'") as refused:
        catalogue.gate("apology", "options.checks[0]")
    assert refused.value.param == "options.checks[0]"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import nowhere_at_all\n", r"bad\.py, line 1: ModuleNotFoundError: No module named 'nowhere_at_all'; repair"),
        ("x = 1\n\ndef f(:\n", r"bad\.py, line 3: SyntaxError: .*; repair"),
        ("x = 1\nint('one')\n", r"bad\.py, line 2: ValueError: .*; repair"),
        (DEBATE, r"debate\.py, line 9: the name 'debate' is taken by the recipe of .*bad\.py, line 9; choose another"),
        (DEBATE.replace('("debate"', '("status"'), r"bad\.py, line 9: the name 'status' is that of a command of the t"),
        (DEBATE.replace('("debate"', '("Debate_2"'), r"bad\.py, line 9: 'Debate_2' cannot be the name of a recipe; ta"),
        (A_REWARD.format(name="acme", data_sources=()), r"debate\.py, line 24: the name 'acme' is taken by the reward"),
        (
            A_REWARD.format(name="other", data_sources=("acme/qa",)),
            r"debate\.py, line 24: reward 'other' is for data source 'acme/qa', too",
        ),
    ],
    ids=["no module", "no Python", "raises", "taken", "a command", "no name", "taken reward", "taken data source"],
)
def test_what_cannot_be_used_stops_the_start_with_file_and_line(folder: Path, source: str, says: str) -> None:
    (folder / "bad.py").write_text(source)
    with pytest.raises(ConfigurationError, match=says):
        registry.catalogue(Settings(recipes=str(folder)))


def test_a_folder_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^BATCHYARD_RECIPES=.*/none: there is no such folder$"):
        registry.load(str(tmp_path / "none"))


def test_no_recipe_can_take_the_name_of_a_command_of_the_terminal() -> None:
    assert set(cli.commands) - set(registry.load(None).recipes) <= COMMANDS


def test_rewards_that_run_without_a_process_of_their_own_are_rewards() -> None:
    assert set(CATALOGUE.rewards) >= LINEAR
