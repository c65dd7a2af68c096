"""Build the documentation site into site/html: python docs/build_site.py. `make docs` runs it.

The pages are those of docs/, README.md as the first one, every file elsewhere that they link to, and a page per command
from its help or its recipe's options. zensical.toml has their order and their look. A broken link fails the build, and
so does a request to another host.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import click

from batchyard.cli.main import cli
from batchyard.cli.recipes.group import BUILT_IN
from recipes import registry

ROOT = Path(__file__).resolve().parents[1]
PAGES, HTML = ROOT / "site" / "pages", ROOT / "site" / "html"
RECIPES = registry.load("")
WIDTH = 100
"""Columns of a help text."""
_LINK = r'(\]\(|src="|srcset=")([^)":#\s]+)(?=[)"#])'
_REQUEST = r'<(?:script|link|img|source|iframe)\b[^>]*\b(?:src|href|srcset)="(?:https?:)?//[^>]*>'


def main() -> None:
    write_pages()
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    if status := subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit(status)
    requests = {tag for page in HTML.rglob("*.html") for tag in re.findall(_REQUEST, page.read_text())}
    if requests:
        sys.exit("requests to other hosts:\n" + "\n".join(sorted(requests)))


def write_pages() -> None:
    """Write the pages, as Markdown, into site/pages."""
    shutil.rmtree(ROOT / "site", ignore_errors=True)
    shutil.copytree(ROOT / "docs" / "images", PAGES / "images")
    for path in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]:
        _add(path)
    _add_commands()


def _add(path: Path) -> None:
    """Copy a file into the pages, and those outside docs/ that it links to."""
    name = _name(path)
    if (PAGES / name).exists() or not path.exists():  # zensical reports a link to nothing
        return
    (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".md":
        shutil.copy(path, PAGES / name)
        return
    text = path.read_text()
    (PAGES / name).write_text(re.sub(_LINK, lambda match: match[1] + _link(path, match[2]), text))
    for target in re.findall(r"\]\(([^):#\s]+)[)#]", text):
        _add((path.parent / target).resolve())


def _name(path: Path) -> PurePosixPath:
    """Return the name of a file of the repository among the pages."""
    name = PurePosixPath(path.relative_to(ROOT / "docs" if path.is_relative_to(ROOT / "docs") else ROOT))
    return PurePosixPath("index.md") if name == PurePosixPath("README.md") else name


def _link(page: Path, target: str) -> str:
    """Return the link between two pages of the site for that between two files of the repository."""
    depth = len(_name(page).parts) - 1
    return "../" * depth + str(_name((page.parent / target).resolve()))


def _add_commands() -> None:
    """Write a page per command, and the table of them."""
    folder = PAGES / "commands"
    folder.mkdir()
    lines = ["# Commands", "", "Each page is the output of `--help`, or lists the options of a recipe.", ""]
    for title, names in cli.sections.items():
        lines += [f"## {title}", "", "| command | |", "|---|---|"]
        for name in names:
            command = cli.commands.get(name)
            page = _options(name) if command is None else _help(f"batchyard {name}", command, "#")
            (folder / f"{name}.md").write_text("\n".join(page))
            summary = BUILT_IN[name] if command is None else command.get_short_help_str(WIDTH)
            lines.append(f"| [`batchyard {name}`]({name}.md) | {summary} |")
        lines.append("")
    (folder / "index.md").write_text("\n".join(lines))


def _options(name: str) -> list[str]:
    """Return the options of a recipe as Markdown: only a server knows them in the terminal."""
    options = RECIPES.recipe(name).options.model_json_schema()["properties"]
    lines = [f"# batchyard {name}", "", f"{BUILT_IN[name]} See [recipes](../recipes.md).", ""]
    lines += ["| option | default | |", "|---|---|---|"]
    for option, schema in options.items():
        default = json.dumps(schema["default"], ensure_ascii=False) if schema.get("default") is not None else ""
        shown = f"`{default}`" if default and len(default) <= WIDTH else ""
        lines.append(f"| `{option}` | {shown} | {schema.get('description', '')} |".replace("||", "| |"))
    return lines


def _help(name: str, command: click.Command, heading: str) -> list[str]:
    """Return the help of a command and of its subcommands as Markdown."""
    context = click.Context(command, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH)
    lines = [f"{heading} {name}", "", "```text", command.get_help(context), "```", ""]
    for subname, subcommand in command.commands.items() if isinstance(command, click.Group) else ():
        lines += _help(f"{name} {subname}", subcommand, heading + "#")
    return lines


if __name__ == "__main__":
    main()
