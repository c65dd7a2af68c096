"""Batches as text for a terminal: as facts, as a table, and as a few lines of progress."""

import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from batchyard import durations, tariffs, wording
from batchyard.cli.output import lines_of, painted, plain, when
from batchyard.client.progress import LABEL, bar, counts, labelled, percent, problems, warnings
from batchyard.statuses import TERMINAL

_COLOURS = {"completed": "green", "failed": "red", "expired": "red", "cancelled": "yellow", "cancelling": "yellow"}

SHORT = 5
"""The times of a batch are whole seconds: an average over fewer says little."""


def facts(batch: dict[str, Any]) -> str:
    """All facts of one batch, one a line."""
    ours, usage = batch["batchyard"], batch["usage"] or {}
    return lines_of(
        ["", ""],
        [
            ("batch", batch["id"]),
            ("status", status(batch, " (simulated)" if ours["simulated"] else "")),
            ("now", _state(batch)),
            ("on hold", _held(batch)),
            ("engine deaths", deaths(ours)),
            *(("warning", text) for text in warnings(batch)),
            ("priority", None if ours["priority"] == "normal" else ours["priority"]),
            ("progress", bar(batch)),
            (LABEL, counts(batch)),
            *((("of the answers", flaws),) if (flaws := wording.flaws(ours)) else ()),
            *_right(ours),
            ("expired, cancelled", f"{ours['expired']}, {ours['cancelled']}"),
            ("tokens in, out", f"{usage.get('input_tokens')}, {usage.get('output_tokens')}"),
            ("cost", cost(ours)),
            ("rows/s, tokens/s", _speed(batch)),
            *_latencies(ours.get("latency")),
            ("eta", paused(batch) or remaining(batch)),
            ("beside it", "; ".join(wording.live_share(*entry) for entry in ours["live_shares"].items()) or None),
            ("sla", deadline(batch)),
            ("created", when(batch["created_at"])),
            ("expires", when(batch["expires_at"])),
            ("output file", batch["output_file_id"]),
            ("error file", batch["error_file_id"]),
            ("artifacts", ", ".join(artifact["name"] for artifact in ours["artifacts"]) or None),
        ],
    )


def _right(ours: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for step in ours["post_process"]:
        if step["step"] == "score" and (totals := step.get("summary")) and totals["total"]:
            share = 100 if totals["accuracy"] == 1 else f"{min(totals['accuracy'] * 100, 99.9):.1f}"
            yield "right", f"{totals['correct']:,} of {totals['total']:,} ({share} %)"


def cost(ours: dict[str, Any]) -> str | None:
    """What a batch or a job has cost so far; None without a tariff."""
    cost = ours.get("cost")
    if cost is None:
        return None
    unpriced = f", without {cost['unpriced_requests']} requests of no tariff" if cost["unpriced_requests"] else ""
    return tariffs.text(Fraction(cost["amount"]), cost["currency"]) + unpriced


def overview(batches: Sequence[dict[str, Any]]) -> str:
    columns = ["batch", "status", "done", LABEL, "rows/s", "eta", "sla", "model", "created"]
    return lines_of(
        columns,
        [
            (
                *(b["id"], status(b), percent(b), counts(b), rate(_rates(b)[0])),
                *(eta(b), sla(b), b["model"], when(b["created_at"])),
            )
            for b in batches
        ],
    )


def progress(batch: dict[str, Any]) -> str:
    """A bar, and below it speed, ETA and SLA as far as they are known."""
    ours = batch["batchyard"]
    rows, tokens, duration, held = ours["rows_per_second"], ours["tokens_per_second"], remaining(batch), _held(batch)
    parts = (
        _state(batch),
        None if rows is None else f"{rows:.1f} rows/s",
        None if tokens is None else f"{tokens:.0f} tokens/s",
        duration and f"done in {duration}",
        held and f"on hold: {held}",
        wording.flaws(ours),
        (died := deaths(ours)) and f"engine deaths: {died}",
        sla(batch),
    )
    line = f"{status(batch, width=11)}  {bar(batch)}{labelled(batch)}"
    return line + "\n" + ", ".join(filter(None, parts))


def status(document: dict[str, Any], suffix: str = "", width: int = 0) -> str:
    """The status of a batch or a job, in a terminal in the colour of what has happened."""
    name, counts = document["status"], document["request_counts"]
    colour = _COLOURS.get(name, "cyan")
    if name == "completed" and (counts["failed"] or counts.get("stuck")):
        colour = "yellow" if counts["completed"] else "red"
    return painted(f"{name + suffix:{width}}", colour)


def brief(batch: dict[str, Any]) -> str:
    """`progress` on one line, for logs."""
    return " ".join(progress(batch).split())


def outlook(dry_run: dict[str, Any]) -> str:
    """How many requests a batch would have, what they would cost, and when it would be done."""
    columns = f"\n{text}" if (text := order(dry_run)) else ""
    size = f"{dry_run['requests']} requests, {dry_run['bytes'] / 1e6:.1f} MB"
    if cost := expected_cost(dry_run.get("cost")):
        size += f", {cost}"
    due = f"due in {durations.text(dry_run['due_at'] - time.time())}"
    if dry_run["eta_seconds"] is None:
        return f"{size}: {due}; nothing like it was measured yet, so nobody knows when it would be done{columns}"
    earliest, latest = (durations.text(dry_run[f"eta_{end}_seconds"]) for end in ("earliest", "latest"))
    end = f"done in {durations.text(dry_run['eta_seconds'])} ({earliest} to {latest})"
    return f"{size}: {end}, {due}: {'on time' if dry_run['on_time'] else 'too late'}{columns}"


PLAN_ANSWERS = 3
"""Answers of each kind that a plan shows."""
PLAN_TEXT = 80


def plan(report: dict[str, Any]) -> str:
    """Return the forecast of a plan with sample answers, and what to do next."""
    requests, sample, forecast = (report[key] for key in ("requests", "sample", "forecast"))
    name, noun, cancel = report.get("batch_id"), "requests", "cancel"
    if name is None:
        name, noun, cancel = report["job_id"], "items", "job cancel"
    answered = sample["answered"]
    answers = [("answer", one) for one in sample["answers"][:PLAN_ANSWERS]]
    answers += [(kind.replace("_", " "), one) for kind, ones in sample["odd"].items() for one in ones[:PLAN_ANSWERS]]
    shown = [(kind, one["custom_id"], _answer(one, PLAN_TEXT)) for kind, one in answers]
    rest = requests - answered
    return "\n".join(
        [
            f"{answered} of {requests} {noun} answered; ranges hold with {forecast['confidence']:.0%} confidence",
            lines_of(["", ""], list(_forecast(report).items())),
            "",
            lines_of(["", noun.removesuffix("s"), "answer"], shown),
            "",
            f"`batchyard resume {name}` answers the other {rest}; `batchyard {cancel} {name}` keeps only these",
        ]
    )


def plans(reports: Sequence[dict[str, Any]]) -> str:
    """Return the forecasts of several models for the same sample, a column each, and what to do next."""
    models = [", ".join(report["models"]) for report in reports]
    forecasts = [
        {"batch": report["batch_id"], "answered": f"{report['sample']['answered']}"} | _forecast(report)
        for report in reports
    ]
    labels = dict.fromkeys(label for forecast in forecasts for label in forecast)
    answers = [{one["custom_id"]: one for one in report["sample"]["answers"]} for report in reports]
    shared = [name for name in answers[0] if all(name in others for others in answers)][:PLAN_ANSWERS]
    shown = [(name, *(_answer(one[name], PLAN_TEXT // len(reports)) for one in answers)) for name in shared]
    first = reports[0]
    return "\n".join(
        [
            f"{first['requests']} requests; ranges hold with {first['forecast']['confidence']:.0%} confidence",
            lines_of(["", *models], [(label, *(forecast.get(label) for forecast in forecasts)) for label in labels]),
            "",
            lines_of(["request", *models], shown),
            "",
            "`batchyard resume BATCH` answers the rest with its model; `batchyard cancel BATCH` keeps only its sample",
        ]
    )


def _forecast(report: dict[str, Any]) -> dict[str, str]:
    """Return what a plan forecasts, each value with its range, by its label."""
    forecast = report["forecast"]
    rows = {
        wording.PLAN_SHARES[key]: f"{share['share']:.1%} ({share['low']:.1%} to {share['high']:.1%})"
        for key, share in forecast["shares"].items()
    }
    for key, one in forecast["tokens"].items():
        rows[f"{key.removesuffix('_tokens')} tokens"] = f"{one['sum']:,.0f} ({one['low']:,.0f} to {one['high']:,.0f})"
    cost, seconds = forecast["cost"], forecast["seconds"]
    rows["cost"] = _money(cost) if cost else "no price"
    rows |= {f"cost at {name}": _money(there) for name, there in forecast["hosted"].items()}
    if seconds is not None:
        rows["time for the rest"] = "{} ({} to {})".format(
            *(durations.text(seconds[name]) for name in ("sum", "low", "high"))
        )
    return rows


def _money(cost: dict[str, str]) -> str:
    sums = (tariffs.text(Fraction(cost[name]), cost["currency"]) for name in ("sum", "low", "high"))
    return "{} ({} to {})".format(*sums)


def _answer(answer: dict[str, Any], length: int) -> str:
    """Return the first characters of an answer of a sample, or of its error."""
    return wording.cut(" ".join((answer["error"] or answer["text"] or "").split()), length)


def order(started: dict[str, Any]) -> str:
    """In which order all columns stand in the prompts; empty if the template does not have them."""
    names = started.get("columns")
    return wording.column_order(names) if names else ""


def expected_cost(cost: dict[str, Any] | None) -> str:
    """What a batch or a job would cost, with its range; empty without a tariff."""
    if cost is None:
        return ""
    if cost["amount"] is None:
        return "at a cost that nobody knows before the first batch"
    amount, least, most = (tariffs.text(Fraction(cost[name]), cost["currency"]) for name in ("amount", "least", "most"))
    return f"about {amount} ({least} to {most})"


def refusal(document: dict[str, Any], command: str) -> str:
    """Says why a batch or a job has not completed, and what lists its errors."""
    errors = (document["errors"] or {}).get("data") or []
    ended = f"{document['object']} {document['id']} is {document['status']}"
    if not errors:
        return ended
    first = problems(document, 1)[0]
    if len(errors) == 1:
        return f"{ended}: {first}"
    whole = next((error["message"].split(";")[0] for error in errors if error["code"] == "too_many_errors"), None)
    number = whole or f"there are {len(errors)} errors"
    return f"{ended}: {first}; {number}, which `{command} {document['id']}` lists"


def eta(batch: dict[str, Any]) -> str | None:
    ours = batch["batchyard"]
    if ours["eta_seconds"] is None or batch["status"] in TERMINAL:
        return None
    return durations.text(ours["eta_seconds"])


def paused(document: dict[str, Any]) -> str | None:
    """Since when a batch or a job is paused, and by whom; None if it is not."""
    ours = document["batchyard"]
    return f"paused by {plain(ours['paused_by'])} at {when(ours['paused_at'])}" if ours.get("paused_at") else None


def remaining(batch: dict[str, Any]) -> str | None:
    ours, text = batch["batchyard"], eta(batch)
    if text is None:
        return None
    return f"{text} ({durations.text(ours['eta_earliest_seconds'])} to {durations.text(ours['eta_latest_seconds'])})"


def _state(batch: dict[str, Any]) -> str | None:
    """What a batch does now, unless its status or its hold says it already."""
    state = batch["batchyard"].get("state") or {"name": None}
    if state["name"] == "starting_engine":
        usual = state["usual_seconds"]
        return "starting engine" + (f", which usually takes {durations.text(usual)}" if usual is not None else "")
    if state["name"] in ("running", "paused"):
        return str(state["name"])
    if state["name"] != "waiting":
        return None
    if not state["behind"]:
        return "waiting for its turn"
    plural = "" if state["behind"] == 1 else "es"
    unnamed = state["behind"] - len(state["behind_ids"])
    more = f" and {unnamed} more" if unnamed else ""
    named = f" ({', '.join(state['behind_ids'])}{more})" if state["behind_ids"] else ""
    return f"waiting behind {state['behind']} batch{plural}{named}"


def _held(batch: dict[str, Any]) -> str | None:
    held = batch["batchyard"].get("held")
    if held is None:
        return None
    model = f"model {held['model']}: " if held["model"] else ""
    return plain(" ".join(f"{model}{held['reason']}".split()))


def deaths(ours: dict[str, Any]) -> str | None:
    """How often engines have died, and why the last one did; None if none has."""
    last = ours.get("last_engine_death")
    if last is None:
        return None
    reason = " ".join(f"{last['reason'].rstrip('.')}.".split())
    text = f"{ours['engine_deaths']}, the last at {when(last['at'])}, model {last['model']}, replica {last['replica']}"
    return plain(f"{text}, with {last['requests']} requests in it: {reason} {wording.AFTER_DEATH[last['next']]}")


def failure(ours: dict[str, Any]) -> str | None:
    """When and why a model's engine has failed, if none has answered since, and why it is on hold."""
    last = ours["last_failure"]
    if last is None:
        return plain(" ".join(ours["held"].split())) if ours["held"] else None
    what = f"died {last['deaths']} times, the last time" if last["deaths"] > 1 else "died"
    return plain(" ".join(f"{when(last['at'])} {what if last['deaths'] else 'no start'}: {last['reason']}".split()))


def _latencies(latency: dict[str, Any] | None) -> list[tuple[str, str]]:
    """How long a request was in its engine: in all, and by model and class where there are several."""
    if latency is None:
        return []
    parts = [
        (f"  {model}, {name}", entry)
        for model, of_model in latency["models"].items()
        for name, entry in of_model["classes"].items()
    ]
    rows = [("per request", latency), *(parts if len(parts) > 1 else [])]
    return [
        (name, ", ".join(f"{key} {durations.brief(entry[key])}" for key in ("p50", "p95", "p99")))
        for name, entry in rows
    ]


def sla(batch: dict[str, Any]) -> str:
    """Return the outlook for the deadline, or whether an ended batch met it."""
    state = _outlook(batch)
    return painted(state, {"late": "red", "at risk": "yellow"}.get(state))


def _outlook(batch: dict[str, Any]) -> str:
    state = str(batch["batchyard"]["sla"])
    if batch["status"] in TERMINAL and state != "late":
        return "in time" if batch["status"] == "completed" else "-"
    return state.replace("_", " ")


def deadline(batch: dict[str, Any]) -> str:
    """Return the outlook for the deadline, if there is one, and when that is."""
    state = _outlook(batch)
    return due(batch) if state == "-" else f"{state}, {due(batch)}"


def due(batch: dict[str, Any]) -> str:
    due_at = batch["batchyard"]["due_at"]
    if batch["status"] in TERMINAL:
        return f"was due {when(due_at)}"
    seconds = due_at - time.time()
    return f"due in {durations.text(seconds)}" if seconds > 0 else f"due {durations.text(-seconds)} ago"


def _speed(batch: dict[str, Any]) -> str | None:
    rows, tokens = _rates(batch)
    if rows is None and tokens is None:
        return None
    average = " on average" if batch["status"] in TERMINAL else ""
    return f"{rate(rows)}, {rate(tokens)}{average}"


def _rates(batch: dict[str, Any]) -> tuple[float | None, float | None]:
    """Return rows and tokens a second: in the last minute, or on average of an ended batch."""
    ours, start = batch["batchyard"], batch["in_progress_at"]
    if batch["status"] not in TERMINAL:
        return ours["rows_per_second"], ours["tokens_per_second"]
    ends = (batch[f"{name}_at"] for name in ("finalizing", "cancelling", "expired", "failed"))
    end = next((moment for moment in ends if moment is not None), None)
    if start is None or end is None or end - start < SHORT:
        return None, None
    answered, seconds = batch["request_counts"]["completed"] + batch["request_counts"]["failed"], end - start
    tokens = (batch["usage"] or {}).get("output_tokens")
    return answered / seconds, None if tokens is None else tokens / seconds


def rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
