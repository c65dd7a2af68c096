"""Jobs as text for a terminal: as facts, as a table, as a few lines of progress, and their metrics."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from batchyard import durations, wording
from batchyard.cli import view
from batchyard.cli.output import lines_of, plain, when
from batchyard.client.progress import JOB_LABEL, bar, counts, labelled, percent

EXPERIMENT, TUNE = "experiment", "tune"


class JobKind(NamedTuple):
    """What the terminal knows of a recipe's jobs."""

    items: str = "items"  # what their items are called
    has_verdict: bool = False  # the metric `passed` says whether what the job had to show holds
    may_fail_in_part: bool = False  # one completed item is a success, since the report says what became of the others


_KINDS = {EXPERIMENT: JobKind("jobs", has_verdict=True), TUNE: JobKind("cells", may_fail_in_part=True)}


def kind_of(job: Mapping[str, Any]) -> JobKind:
    """Return what is special to the jobs of a recipe."""
    return _KINDS.get(job["recipe"], JobKind())


def facts(job: dict[str, Any]) -> str:
    """All facts of one job, one a line, and its stages."""
    ours, numbers, usage = job["batchyard"], job["request_counts"], job["usage"]
    text = lines_of(
        ["", ""],
        [
            ("job", job["id"]),
            ("recipe", job["recipe"]),
            ("name", job["name"]),
            ("status", view.status(job, " (simulated)" if ours["simulated"] else "")),
            ("on hold", ours["held"]),
            ("engine deaths", view.deaths(ours)),
            ("progress", bar(job)),
            (JOB_LABEL, counts(job)),
            *((("of the answers", flaws),) if (flaws := wording.flaws(ours)) else ()),
            ("expired, cancelled", f"{numbers['expired']}, {numbers['cancelled']}"),
            ("waiting for a verdict", ours["waiting_for_verdict"] or None),
            ("tokens in, out", f"{usage['input_tokens']}, {usage['output_tokens']}"),
            ("cost", view.cost(ours)),
            ("eta", view.paused(job) or view.remaining(job)),
            ("sla", view.deadline(job)),
            ("created", when(job["created_at"])),
            ("expires", when(job["expires_at"])),
            *(("warning", warning["message"]) for warning in ours["warnings"]),
            ("artifacts", ", ".join(artifact["name"] for artifact in ours["artifacts"]) or None),
        ],
    )
    return "\n\n".join(part for part in (text, stages(job), metrics(job)) if part)


def overview(jobs: Sequence[dict[str, Any]]) -> str:
    return lines_of(
        ["job", "recipe", "name", "status", "done", JOB_LABEL, "eta", "sla", "created"],
        [
            (
                *(job["id"], job["recipe"], job["name"], view.status(job), percent(job), counts(job)),
                *(view.eta(job), view.sla(job), when(job["created_at"])),
            )
            for job in jobs
        ],
    )


def progress(job: dict[str, Any]) -> str:
    """A bar, below it ETA and SLA, and below that a line for each stage."""
    return "\n".join(part for part in (_progress(job, "\n"), stages(job)) if part)


def brief(job: dict[str, Any]) -> str:
    """`progress` on one line, for logs."""
    parts = [f"{stage['name']} {stage['answered']}/{stage['issued']}" for stage in job["batchyard"]["stages"]]
    return ", ".join([_progress(job, " "), *parts])


def _progress(job: dict[str, Any], separator: str) -> str:
    remaining, held = view.remaining(job), plain(job["batchyard"]["held"] or "")
    parts = (remaining and f"done in {remaining}", held and f"on hold: {held}", view.sla(job))
    line = f"{view.status(job, width=11)}  {bar(job)}{labelled(job)}"
    return line + separator + ", ".join(filter(None, parts))


def summary(job: dict[str, Any]) -> str:
    """The metrics, what the report warns of, and how the items ended."""
    warnings = [f"Warning: {warning['message']}" for warning in job["batchyard"]["warnings"]]
    return "\n".join(part for part in (metrics(job, whole=False), *warnings, ended(job)) if part)


def ended(job: dict[str, Any]) -> str:
    """How the items of a job have ended, on one line."""
    numbers, items = job["request_counts"], kind_of(job).items
    simulated = " (simulated)" if job["batchyard"]["simulated"] else ""
    if not numbers["total"]:
        return f"No {items} ran: {job['id']}"
    others = "".join(f", {numbers[state]} {state}" for state in ("failed", "stuck") if numbers[state])
    return f"{numbers['completed']} of {numbers['total']} {items} completed{others}{simulated}: {job['id']}"


def children(job: dict[str, Any], jobs: Sequence[dict[str, Any]]) -> str:
    """A table of the jobs that a job has started, oldest first; empty if it has started none."""
    rows = [
        (*(one["batchyard"]["child_key"], view.status(one), percent(one), counts(one)), view.eta(one), one["id"])
        for one in sorted(jobs, key=lambda one: str(one["id"]))
    ]
    reused = job["batchyard"]["counters"].get("taken")
    parts = [lines_of(["child", "status", "done", JOB_LABEL, "eta", "job"], rows)] if rows else []
    return "\n".join([*parts, *([f"taken from earlier jobs: {reused}"] if reused else [])])


def outlook(dry_run: dict[str, Any]) -> str:
    """What a job would be: its items, the requests of its stages, its cost, its warnings, errors of its first rows."""
    seconds, earliest, latest = (dry_run[f"eta_{name}seconds"] for name in ("", "earliest_", "latest_"))
    rows = [
        ("items", dry_run["items"]),
        *(
            (f"requests, {stage['name']}", _between(stage["expected"], stage["least"], stage["most"], str))
            for stage in dry_run["stages"]
        ),
        ("done in", _between(seconds, earliest, latest, durations.text)),
        *((("cost", cost),) if (cost := view.expected_cost(dry_run.get("cost"))) else ()),
        ("the same as", dry_run["same_as"]),
        *(("warning", warning["message"]) for warning in dry_run["warnings"]),
        *(("error", error["message"]) for error in (dry_run.get("errors") or {}).get("data", ())),
    ]
    return lines_of(["", ""], rows)


def _between(value: float | None, least: float | None, most: float | None, text: Callable[[Any], str]) -> str | None:
    """A value, or where that is not known its bounds, as far as they are."""
    if value is not None or least is None:
        return None if value is None else text(value)
    return f"{text(least)} or more" if most is None else f"{text(least)} to {text(most)}"


def stages(job: dict[str, Any]) -> str:
    """A table of the stages; empty before the first one."""
    rows = [
        (stage["name"], stage["expected"], stage["issued"], stage["answered"], stage["failed"], stage["batch_id"])
        for stage in job["batchyard"]["stages"]
    ]
    return lines_of(["stage", "expected", "issued", "answered", "failed", "batch"], rows) if rows else ""


def metrics(job: dict[str, Any], *, whole: bool = True) -> str:
    """A table of the metrics; empty if there are none. Without `whole` those of parts are left out."""
    rows = list(_metrics(job["batchyard"]["metrics"] or {}, whole=whole))
    return lines_of(["metric", "value", "n"], rows) if rows else ""


def _metrics(values: Mapping[str, Any], above: str = "", *, whole: bool) -> Iterator[tuple[str, str, int | None]]:
    """Yield name, value with its interval, and number of samples of each metric. Metrics may stand in groups.

    Beside the metrics a group may have `n` or `prompts`, of how many they are, and `intervals` by name. The `mean` of a
    group with `n` has the group's name.

    `whole`: also yield groups of groups, such as those of each data source.
    """
    n, intervals = values.get("n", values.get("prompts")), values.get("intervals", {})
    for name, value in values.items():
        full = above if name == "mean" and "n" in values else f"{above} {name}".strip()
        if name in ("n", "intervals") or isinstance(value, list):
            continue
        if isinstance(value, Mapping):
            if whole or not all(isinstance(inner, Mapping) for inner in value.values()):
                yield from _metrics(value, full, whole=whole)
            continue
        interval = intervals.get(name)
        suffix = f" ({_number(interval[0])} to {_number(interval[1])})" if interval else ""
        yield full, _number(value) + suffix, n if isinstance(value, float) else None


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
