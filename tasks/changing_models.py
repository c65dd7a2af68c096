"""Changes of the served models while they run: checked as at start, then in force in every process."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from batchyard import models
from batchyard.errors import ConfigurationError, ConflictError, NotFoundError, PermissionDeniedError, RequestError
from batchyard.models import ModelSpec
from batchyard.settings import Settings
from batchyard.wording import MAX_NAME, quoted, suggestion
from inference import catalog
from inference.doctor import checks
from store import model_changes
from store.database import Database
from store.keys import Principal
from store.model_changes import Changes
from tasks.models_in_force import ModelsInForce

By = Callable[[Session], Principal]
"""Returns who makes the change, for the audit."""
# What these say harms nobody but the model's users. Others run commands, load code, read files or send a key somewhere.
HARMLESS = frozenset(
    (
        *("batch_size", "block_size", "device", "dtype", "enable_chunked_prefill", "enable_prefix_caching"),
        *("enforce_eager", "fail_every", "gpu_memory_utilization", "kv_cache_dtype", "kv_cache_memory_bytes"),
        *("latency_ms", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "model", "ms_per_token"),
        *("ms_per_request", "pipeline_parallel_size", "prefill_ms", "prefill_tokens_per_second", "quantization"),
        *("reasoning_parser", "revision", "slots", "start_error", "tensor_parallel_size", "tool_call_parser"),
    )
)
"""The `engine_args` that clients may set."""


class ModelChanger:
    """Changes the served models. `trusted`: an operator of this machine, who may set all that models.toml may."""

    def __init__(self, settings: Settings, database: Database, source: ModelsInForce, by: By, *, trusted: bool) -> None:
        self._settings, self._database, self._source, self._by = settings, database, source, by
        self._trusted = trusted or settings.trust_administrators

    def add(self, name: str, entry: Mapping[str, Any]) -> tuple[ModelSpec, list[str]]:
        """Add a model, and return it with warnings. Raises RequestError, ConflictError, PermissionDeniedError."""
        # Each name is a path of URLs, of which servers and clients merge these parts.
        is_path = {"", ".", ".."}.isdisjoint(name.split("/"))
        if not is_path or len(name) > MAX_NAME or not name.isprintable():
            message = (
                f"A model's name has 1 to {MAX_NAME} printable characters, and something other than dots before and "
                "after each slash; choose another one."
            )
            raise RequestError(message, code="invalid_value", param="id")
        return self._put(name, lambda _: dict(entry), "model.added")

    def set(self, name: str, fields: Mapping[str, Any]) -> tuple[ModelSpec, list[str]]:
        """Change keys of a model's entry and its tables; null removes one. As `add`; raises NotFoundError, too."""
        return self._put(name, lambda before: _merged(before, fields), "model.changed")

    def remove(self, name: str) -> None:
        """Remove a model: new requests are refused, and batches that have it end. Raises as `set`."""
        with self._database.write(serial=True) as session:
            changes = model_changes.read(session)
            entry = self._entry(changes, name)
            if entry is None:
                raise self._unknown(changes, name)
            self._checked(Changes(_without(changes.entries, name), {**changes.removed, name: entry}))
            model_changes.put(session, self._by(session), name, entry, "model.removed")
        self._source.now(at_once=True)

    def reset(self, name: str) -> tuple[ModelSpec, list[str]]:
        """Put a model's entry of models.toml in force again, as it was read last. Raises as `set`."""
        self._source.now(at_once=True)
        with self._database.write(serial=True) as session:
            changes, declared = model_changes.read(session), self._source.document.get("models", {})
            if name not in declared:
                message = f"models.toml has no model {quoted(name)}; {suggestion(name, declared)}"
                raise NotFoundError(message, code="model_not_found", param="model")
            spec = self._checked(Changes(_without(changes.entries, name), _without(changes.removed, name)))[name]
            model_changes.reset(session, self._by(session), name)
        self._source.now(at_once=True)
        return spec, []

    def reload(self) -> dict[str, list[str]]:
        """Have every process read models.toml again. Return the names by what that changes. Raises RequestError."""
        before = self._source.now(at_once=True).models
        with self._database.write(serial=True) as session:
            changes = model_changes.read(session)
            after = self._checked(changes, reload=True)
            model_changes.reload(session, self._by(session))
        self._source.now(at_once=True)
        return {
            "added": sorted(after.keys() - before.keys()),
            "changed": sorted(name for name in after.keys() & before.keys() if after[name] != before[name]),
            "removed": sorted(before.keys() - after.keys()),
            "not_used": sorted(changes.over_file.keys() & self._source.document["models"].keys()),
        }

    def written(self) -> str:
        """Return what is in force as a models.toml."""
        with self._database.read() as session:
            changes = model_changes.read(session)
        currency = self._source.document.get("currency")
        lines = [f'currency = "{currency}"\n\n'] if currency else []
        names = dict.fromkeys((*self._source.document.get("models", {}), *changes.entries))
        entries = {name: self._entry(changes, name) for name in names}
        services = self._source.document.get("hosted", {})
        lines += [models.written(name, entry, "hosted") for name, entry in services.items()]
        return "\n".join([*lines, *(models.written(name, entry) for name, entry in entries.items() if entry)])

    def _put(
        self, name: str, made: Callable[[Mapping[str, Any]], dict[str, Any]], action: Any
    ) -> tuple[ModelSpec, list[str]]:
        self._source.now(at_once=True)
        with self._database.write(serial=True) as session:
            changes = model_changes.read(session)
            before = self._entry(changes, name)
            if action == "model.added" and before is not None:
                message = f"There is a model {quoted(name)} already; change it with PATCH or `batchyard models set`."
                raise ConflictError(message, code="model_exists", param="id")
            if action == "model.changed" and before is None:
                raise self._unknown(changes, name)
            entry = made(before or {})
            with self._for_clients():
                _check_json(entry)
            after = Changes({**changes.entries, name: entry}, _without(changes.removed, name))
            if not self._trusted:  # first: the checks say which files there are
                path, document = self._settings.models, self._source.document
                old = models.entries_of(path, document, changes.over_file).get(name, {})
                with self._for_clients():
                    new = models.entries_of(path, document, after.over_file)[name]
                refuse_risky(name, path.parent, new, old)
            spec = self._checked(after)[name]
            findings = list(checks.of_loaded({name: spec}))
            if failed := next((one for one in findings if one.result == "failed"), None):
                message = f"models.{name}, {failed.check}: {failed.detail}; {failed.remedy}."
                raise RequestError(message, code="invalid_model", param="entry")
            model_changes.put(session, self._by(session), name, entry, action)
        self._source.now(at_once=True)
        return spec, [f"{one.check}: {one.detail}; {one.remedy}" for one in findings]

    def _entry(self, changes: Changes, name: str) -> dict[str, Any] | None:
        """Return the entry in force as it was written; None if there is none."""
        if name in changes.removed:
            return None
        declared: dict[str, dict[str, Any]] = self._source.document.get("models", {})
        return changes.entries.get(name) or declared.get(name)

    def _checked(self, changes: Changes, *, reload: bool = False) -> dict[str, ModelSpec]:
        """Return the models with these changes, with `reload` over the file as it is now. Raises RequestError."""
        with self._for_clients():
            return self._source.check(changes, models.parsed(self._settings.models) if reload else None)

    @contextmanager
    def _for_clients(self) -> Iterator[None]:
        """Raise a block's ConfigurationError as RequestError, without the path of models.toml."""
        try:
            yield
        except ConfigurationError as error:
            message = error.message.removeprefix(f"{self._settings.models}: ")
            raise RequestError(message, code="invalid_model", param="entry") from None
        except RecursionError:
            raise RequestError("The entry is nested too deeply.", code="invalid_model", param="entry") from None

    def _unknown(self, changes: Changes, name: str) -> NotFoundError:
        names = models.entries_of(self._settings.models, self._source.document, changes.over_file)
        message = f"The model {quoted(name)} does not exist; {suggestion(name, names)}"
        return NotFoundError(message, code="model_not_found", param="model")


def refuse_risky(name: str, folder: Path, new: Mapping[str, Any], old: Mapping[str, Any], place: str = "entry") -> None:
    """Refuse an entry that runs commands, loads code, reads this machine's files or sends a key elsewhere.

    `folder`: that of models.toml. `old`: the entry that is in force, which may do so. `place`: the parameter that has
    the keys. Raises PermissionDeniedError.
    """
    arguments, before = _table(new, "engine_args"), _table(old, "engine_args")
    sends_key = "api_key_env" in arguments or "api_key_env" in repr(arguments.get("endpoints"))
    allowed = HARMLESS if sends_key else {*HARMLESS, "endpoints"}
    # What else an operator has set may trust the source, and run the code that is in it.
    trusts = not allowed.issuperset(arguments)
    allowed = allowed - {"revision"} if trusts else allowed
    risky = [f"engine_args.{key}" for key in arguments if key not in allowed and arguments[key] != before.get(key)]
    if new.get("engine") != old.get("engine") and before.keys() - HARMLESS:
        risky.append("engine")
    places = {"source": (new, old)} | {
        f"adapters.{one}.source": (_table(_table(new, "adapters"), one), _table(_table(old, "adapters"), one))
        for one in _table(new, "adapters")
    }
    for key, (entry, earlier) in places.items():
        source = str(entry.get("source") or "")
        is_local = not catalog.HUB_ID.fullmatch(source) or (folder / Path(source).expanduser()).is_dir()
        if source and source != earlier.get("source") and (is_local or trusts):
            risky.append(key)
    if risky:
        message = (
            f"models.{name}.{risky[0]} cannot be set over HTTP: it may run a command, load code, read a file or "
            "send a key elsewhere; use `batchyard models` on the server, or set BATCHYARD_TRUST_ADMINISTRATORS=1."
        )
        raise PermissionDeniedError(message, code="key_not_allowed", param=f"{place}.{risky[0]}")


def _check_json(entry: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for what TOML has and JSON has not. Raises RecursionError, too."""
    try:
        json.dumps(entry, allow_nan=False)
    except (TypeError, ValueError) as error:
        message = f"The entry is more than JSON can say: {error}. Write a date as a text, and finite numbers."
        raise ConfigurationError(message) from None


def _table(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a table of an entry that nobody has checked; an empty one if it is no table."""
    value = entry.get(key)
    return value if isinstance(value, dict) else {}


def _merged(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with changes; null removes a key, and what is a table on both sides is merged, too."""
    both = (key for key, value in given.items() if isinstance(value, dict) and isinstance(before.get(key), dict))
    tables = {key: _merged(before[key], given[key]) for key in both}
    return {key: value for key, value in {**before, **given, **tables}.items() if value is not None}


def _without(entries: Mapping[str, dict[str, Any]], name: str) -> dict[str, dict[str, Any]]:
    return {each: entry for each, entry in entries.items() if each != name}
