"""Code that does what a form does: in a terminal, with curl, and in Python."""

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import flask

from batchyard.endpoints.catalog import CHAT

_FLAGS = {"completion_window": "--window", "seed": "--seed", "name": "--name"}
"""Flags of `batchyard <recipe>`, by the field of a job that they set."""
_FILE_ID = "FILE_ID"


def live(endpoint: str, body: Mapping[str, Any]) -> dict[str, str]:
    """Return the code of a live request."""
    curl = {"curl": _curl(endpoint, f"-d {_json(body)}")}
    if endpoint != CHAT.path:
        return curl
    *system, question = [message["content"] for message in body["messages"]]
    command = ["batchyard", "chat", "-m", body["model"], *(["--system", *system] if system else [])]
    if sampling := {name: value for name, value in body.items() if name not in ("model", "messages")}:
        command += ["--sampling", json.dumps(sampling)]
    arguments = "".join(f"\n    {name}={value!r}," for name, value in body.items())
    call = f"answer = client.chat.completions.create({arguments}\n)\nprint(answer.choices[0].message.content)"
    return {"Terminal": shlex.join([*command, question]), **curl, "Python": _python(call)}


def job(body: Mapping[str, Any], file: str) -> dict[str, str]:
    """Return the code that uploads a file and creates a job of it."""
    flags = [f"{flag} {shlex.quote(str(body[name]))}" for name, flag in _FLAGS.items() if name in body]
    options = [shlex.quote(f"{name}={_text(value)}") for name, value in _leaves(body.get("options", {}))]
    sent = {**body, "input_file_id": _FILE_ID}
    upload = f'file_id = client.files.create(file=Path({file!r}), purpose="user_data").id'
    call = f'print(client.post("/jobs", cast_to=object, body={sent!r}))'.replace(repr(_FILE_ID), "file_id")
    form = f"-F purpose=user_data -F {shlex.quote(f'file=@{file}')}\n# {_FILE_ID}: the id in the first answer"
    return {
        "Terminal": " \\\n  ".join([f"batchyard {body['recipe']} {shlex.quote(file)}", *flags, *options]),
        "curl": f"{_curl('/v1/files', form)}\n{_curl('/v1/jobs', f'-d {_json(sent)}')}",
        "Python": _python(f"{upload}\n{call}", "import os\nfrom pathlib import Path"),
    }


def _curl(path: str, rest: str) -> str:
    return f'curl {_url(path)} -H "Authorization: Bearer $BATCHYARD_API_KEY" \\\n  {rest}'


def _python(code: str, imports: str = "import os") -> str:
    client = f'client = OpenAI(base_url="{_url("/v1")}", api_key=os.environ["BATCHYARD_API_KEY"])'
    return f"{imports}\n\nfrom openai import OpenAI\n\n{client}\n{code}"


def _url(path: str) -> str:
    return flask.request.host_url.rstrip("/") + path


def _json(body: Mapping[str, Any]) -> str:
    return shlex.quote(json.dumps(body, ensure_ascii=False))


def _leaves(options: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the options with dots between the keys of nested ones."""
    for name, value in options.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{above}{name}.")
        elif value is not None:
            yield above + name, value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
