"""What is recommended was measured, meets the SLO, and no other cell beats it."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from batchyard import models
from recipes.tune.cells import Cell
from recipes.tune.recommendation import MARGIN, best, measured, meets, pareto, recommend
from recipes.tune.results import CellResult
from recipes.tune.slo import parse
from tests.recipes.tune.made import MINI, failed, options, repeat, result, the_cells

SLO = "p95<=5s,errors<=5%"


def of(tokens: float, overrides: int, **values: Any) -> CellResult:
    """Return the result of a cell with so many tokens/s and overrides."""
    name = f"cell-{tokens:g}-{overrides}"
    cell = Cell(name=name, model="mini", overrides={f"engine_args.key{number}": 1 for number in range(overrides)})
    return result(cell, repeat(tokens, **values))


def test_the_fastest_cell_that_meets_the_slo_is_recommended() -> None:
    results = [of(100, 1), of(300, 1, p95=7.0), of(200, 1), of(400, 1, ok=900, errors={"request_timeout": 100})]
    chosen = best(results, parse(SLO))
    assert chosen is results[2]


def test_within_a_percent_of_the_fastest_the_fewest_overrides_are_recommended() -> None:
    assert best([of(1000, 3), of(990, 2), of(989, 1)], None) == of(990, 2)
    assert best([of(1000, 2), of(995, 2)], None) == of(1000, 2)


def test_medians_decide_and_not_the_best_repeat() -> None:
    [steady], [lucky] = the_cells(MINI, batch=[8]), the_cells(MINI, batch=[9])
    results = [
        result(lucky, repeat(900), repeat(10), repeat(20)),
        result(steady, repeat(100), repeat(100), repeat(100)),
    ]
    assert best(results, None) is results[1]


def test_a_cell_that_ran_with_other_values_than_it_names_is_not_recommended() -> None:
    other = of(900, 1).model_copy(update={"overrides": {"engine_args.key0": 2}})
    assert best([other, of(100, 1)], None) == of(100, 1)


def test_the_entry_is_the_recommended_cells_and_is_read_as_a_models_file_is() -> None:
    [cell] = the_cells(MINI, batch=[64], set={"engine_args.compilation_config": [{"level": 0, "sizes": [1, 2]}]})
    recommendation = recommend(options(), [MINI], [result(cell)])
    assert recommendation.entry is not None
    assert tomllib.loads(recommendation.entry)["models"] == {"mini": cell.entry(MINI)}


def test_the_reasons_compare_with_the_model_as_it_is_and_say_how_many_rows_a_window_holds() -> None:
    [plain], [tuned] = the_cells(MINI), the_cells(MINI, batch=[64])
    recommendation = recommend(options(slo=SLO, window="1h"), [MINI], [result(plain), result(tuned, repeat(250))])
    text = " ".join(sentence.text for sentence in recommendation.sentences)
    assert "2.5 times the tokens/s of mini, the model as it is" in text
    assert recommendation.rows == 360_000 and "a window of 1h has room for 360,000 rows" in text


def test_no_cell_is_recommended_where_none_meets_the_slo_and_the_nearest_is_named() -> None:
    results = [of(100, 1, p95=9.0), of(50, 2, p95=5.5), of(900, 3, p95=2.0, ok=100, errors={"engine_died": 900})]
    recommendation = recommend(options(slo=SLO), [MINI], results)
    assert (recommendation.cell, recommendation.nearest, recommendation.entry) == (None, "cell-50-2", None)
    [first, second] = recommendation.sentences
    assert first.text == "No cell of 3 meets the SLO (p95 <= 5 s, errors <= 5 %), so none is recommended."
    assert second.text == "cell-50-2 is nearest to it: 5.5 s breaks p95 <= 5 s."


def test_nothing_is_recommended_where_nothing_was_measured() -> None:
    [cell] = the_cells(MINI)
    recommendation = recommend(options(), [MINI], [failed(cell, "CUDA out of memory")])
    assert (recommendation.cell, recommendation.nearest) == (None, None)
    assert recommendation.sentences[0].text.startswith("No cell was measured")


def test_what_is_simulated_or_not_steady_is_said() -> None:
    [cell] = the_cells(MINI, batch=[900])
    texts = [each.text for each in recommend(options(), [MINI], [result(cell, simulated=True)]).sentences]
    assert any("not steady" in text for text in texts) and any("simulated" in text for text in texts)


def test_a_ratio_has_its_range_over_the_repeats_and_says_if_that_holds_one() -> None:
    [plain], [tuned] = the_cells(MINI), the_cells(MINI, batch=[64])
    slow, fast = (
        result(plain, repeat(100), repeat(110), repeat(90)),
        result(tuned, repeat(200), repeat(220), repeat(198)),
    )
    texts = [each.text for each in recommend(options(), [MINI], [slow, fast]).sentences]
    assert "That is 2 times (1.8 to 2.44 by the repeats) the tokens/s of mini, the model as it is." in texts
    near = result(tuned, repeat(102), repeat(108), repeat(95))
    assert any(
        "which does not tell them apart" in each.text for each in recommend(options(), [MINI], [slow, near]).sentences
    )


# Any results

REPEATS = st.builds(
    repeat,
    tokens=st.sampled_from([0, 90, 98.9, 99, 99.5, 100, 101]),
    p95=st.none() | st.sampled_from([1.0, 4.9, 5.0, 5.1]),
    ok=st.sampled_from([0, 900, 950, 1000]),
)


@st.composite
def tunes(draw: st.DrawFn) -> list[CellResult]:
    results = []
    for number in range(draw(st.integers(0, 6))):
        overrides = {f"engine_args.key{key}": number for key in range(draw(st.integers(0, 3)))}
        cell = Cell(name=f"cell-{number}", model="mini", overrides=overrides)
        state = draw(st.sampled_from(["completed", "completed", "completed", "failed", "over_budget", "not_run"]))
        repeats = draw(st.lists(REPEATS, max_size=3))
        wrong = draw(st.booleans()) and overrides and dict.fromkeys(overrides, -1)
        results.append(CellResult(cell=cell, state=state, repeats=tuple(repeats), overrides=wrong or {}))
    return results


def figures(result: CellResult) -> tuple[float, float, int]:
    medians = measured(result)
    assert medians is not None and medians.tokens is not None
    return medians.tokens, -(medians.p95 or 0), -len(result.cell.overrides)


@given(tunes(), st.sampled_from([None, SLO, "seed", "tokens>=99/s"]))
def test_what_is_recommended_meets_the_slo_and_is_not_dominated(results: list[CellResult], slo: str | None) -> None:
    objective = None if slo is None else parse(slo)
    chosen = best(results, objective)
    candidates = [each for each in results if meets(each, objective)]
    if chosen is None:
        assert not candidates
        return
    assert chosen.state == "completed" and not chosen.differing
    assert objective is None or not objective.broken(chosen.medians)
    mine = figures(chosen)
    most = max(figures(each)[0] for each in candidates)
    assert mine[0] >= (1 - MARGIN) * most
    for other in candidates:
        theirs = figures(other)
        assert theirs == mine or any(one > another for one, another in zip(mine, theirs, strict=True))
        if theirs[0] >= (1 - MARGIN) * most:
            assert theirs[2] <= mine[2]


@given(tunes(), st.sampled_from([None, SLO, "seed"]))
def test_every_cell_that_a_sentence_rests_on_exists_and_every_sentence_has_one(
    results: list[CellResult], slo: str | None
) -> None:
    recommendation = recommend(options(slo=slo), [MINI], results)
    names = {each.cell.name for each in results}
    assert recommendation.sentences
    for sentence in recommendation.sentences:
        assert set(sentence.cells) <= names
        assert sentence.cells or not results
    assert {recommendation.cell, recommendation.nearest} <= names | {None}
    assert None in (recommendation.cell, recommendation.nearest)
    if recommendation.entry is not None:
        assert list(tomllib.loads(recommendation.entry)["models"]) == ["mini"]


@given(st.dictionaries(st.text(max_size=3), st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_the_front_has_just_the_points_that_no_other_beats(points: dict[str, tuple[float, float]]) -> None:
    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one != other and one[0] <= other[0] and one[1] >= other[1]

    undominated = {place for place in points.values() if not any(beats(other, place) for other in points.values())}
    front = pareto(points)
    assert {points[name] for name in front} == undominated
    assert [points[name][0] for name in front] == sorted(points[name][0] for name in front)


JSON = st.recursive(
    st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.text(max_size=5), st.dictionaries(st.text(max_size=5), JSON, max_size=3))
def test_any_entry_is_written_as_toml_that_reads_the_same(name: str, arguments: dict[str, Any]) -> None:
    entry = {"engine": "vllm", "source": 'C:\\models\n\x7f"', "replicas": 2} | (
        {"engine_args": arguments} if arguments else {}
    )
    assert tomllib.loads(models.written(name, entry)) == {"models": {name: entry}}
