"""Which children of a composite start now: a pure function of the children and how they stand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from batchyard.recipes import Child
from batchyard.statuses import TERMINAL


class ChildStart(NamedTuple):
    """A child that starts now. `source`: the key of an ended one with the same requests."""

    child: Child
    source: str | None


@dataclass
class Plan:
    """What to do now. `never`: children whose earlier round failed."""

    starts: list[ChildStart] = field(default_factory=list)
    never: list[str] = field(default_factory=list)


def plan(
    children: Sequence[Child], statuses: Mapping[str, str], works: Mapping[str, str], parallel: int | None = None
) -> Plan:
    """Return the children that start now, in their order, and those that never will.

    Of children that make the same requests (`works`, by key) one runs at a time, so that the next one can take its
    answers. `statuses` of jobs that have begun are by key; `failed` for one that never will.
    """
    ended = {key: status for key, status in statuses.items() if status in TERMINAL}
    busy = {works[key] for key in statuses.keys() - ended.keys()}
    capacity = len(children) if parallel is None else parallel - (len(statuses) - len(ended))
    chosen = Plan()
    answered: dict[str, str] = {}
    for child in children:
        key, work = child.key, works[child.key]
        if key in statuses:
            if ended.get(key) == "completed":
                answered.setdefault(work, key)
        elif child.before is not None and ended.get(child.before) != "completed":
            if child.before in ended:
                chosen.never.append(key)
                ended[key] = "failed"
        elif capacity > len(chosen.starts) and work not in busy:
            chosen.starts.append(ChildStart(child, answered.get(work)))
            busy.add(work)
    return chosen
