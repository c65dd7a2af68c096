"""All checks of the models of a models.toml."""

from collections.abc import Iterator
from pathlib import Path

from batchyard.errors import ConfigurationError
from batchyard.models import ModelSpec
from inference import catalog
from inference.doctor import folder, starting
from inference.doctor.folder import Finding
from inference.doctor.memory import Machine, memory, this_machine, together
from inference.engines import registry
from inference.engines.weights import folder_of


def check(
    models: Path,
    *,
    allow_simulated: bool,
    only: tuple[str, ...] = (),
    start_seconds: float | None = None,
    reproducible: bool = False,
    machine: Machine | None = None,
) -> Iterator[Finding]:
    """Yield what each check of each model says, in the order of the file.

    Args:
        only: check these models only; all if empty.
        start_seconds: also start each model's engine, for at most so long, and ask it once at each endpoint.
        reproducible: then also test that its answers do not depend on other requests.
        machine: the memory that is there, by default this machine's.
    """
    entries = catalog.each(models, allow_simulated=allow_simulated)
    if unknown := [name for name in only if name not in entries]:
        raise ConfigurationError(f"{models}: no model {unknown[0]!r}; there are: {', '.join(entries)}")
    there, loaded = machine or this_machine(), []
    for name, entry in entries.items():
        if only and name not in only:
            continue
        if isinstance(entry, ConfigurationError):
            place, _, reason = entry.message.partition(": ")
            reason, _, remedy = reason.rpartition("; ") if "; " in reason else (reason, "", "")
            yield Finding(name, place.removeprefix(f"models.{name}").lstrip(".") or "entry", "failed", reason, remedy)
            continue
        findings = list(_of(entry, there))
        yield from findings
        if (files := _files(entry)) is not None:
            loaded.append((entry, files))
        if start_seconds is not None and not any(finding.result == "failed" for finding in findings):
            yield from starting.start(entry, start_seconds, reproducible=reproducible)
    if (all_of_them := together(loaded, there)) is not None:
        yield all_of_them


def of_loaded(models: dict[str, ModelSpec]) -> Iterator[Finding]:
    """Yield what is wrong with models that are loaded already: what is cheap to see."""
    machine = this_machine()
    for spec in models.values():
        yield from (finding for finding in _of(spec, machine) if finding.wrong)
    loaded = [(spec, files) for spec in models.values() if (files := _files(spec)) is not None]
    if (all_of_them := together(loaded, machine)) is not None:
        yield all_of_them


def _of(spec: ModelSpec, machine: Machine) -> Iterator[Finding]:
    engine = registry.capabilities(spec.engine)
    if (missing := engine.missing(spec)) is not None:
        remedy = f"install {missing} where engines start"
        yield Finding(spec.name, "engine", "warning", f"{missing} is not installed here", remedy)
    if engine.argument_names() is None:
        yield Finding(spec.name, "engine_args", "not checked", "their names are checked where the engine starts")
    else:
        yield Finding(spec.name, "engine_args", "ok", ", ".join(spec.engine_args) or "none")
    if not spec.source or engine.simulated:
        return
    files = _files(spec)
    if files is None:
        detail = f"{spec.source} is not on this machine: the start downloads it"
        yield Finding(spec.name, "folder", "warning", detail, f"download it before: hf download {spec.source}")
        return
    yield Finding(spec.name, "folder", "ok", str(files))
    yield folder.tokenizer(spec, files)
    if (template := folder.chat_template(spec, files)) is not None:
        yield template
    yield from (folder.adapter(spec, name) for name in spec.adapters)
    yield memory(spec, files, machine)


def _files(spec: ModelSpec) -> Path | None:
    if not spec.source or registry.capabilities(spec.engine).simulated:
        return None
    return folder_of(spec.source, revision=spec.engine_args.get("revision"))
