"""Measure the prose of documents, help texts and pages: python docs/prose.py. Exits with 1 above the limits."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from batchyard.cli import main
from batchyard.cli.recipes.group import BUILT_IN

ROOT = Path(__file__).parents[1]
AVERAGE, LONGEST = 14.0, 35
"""Limits of the average and of the longest sentence, in words."""
BANNED = r"""
all the while|beside|in turn|looks? after|made? way|nobody|of which|one can|one that|so that|such (?!as\b)\w+
|what there is|whatever|goes? on|comes? back|(?:of|by) (?:ours|theirs)|no such|that there (?:is|are)
|(?:is|are|was|were|been) (?:told|asked|taken|said)|(?<!there )(?:is|are) no (?!longer|more)
|(?:says?|tells?|knows?|wants?) (?:so|how|what|when|which|whether|why)
|what (?:is|was|were|has|have|had|it|they|fails|failed|runs|ran|remains)(?! \w+[^.]*\?)
""".replace("\n", "")
"""Constructions to avoid, as regular expressions: idioms, inversions, noun clauses and personified machines."""


def markdown(text: str) -> Iterator[str]:
    """Yield the blocks of prose of a Markdown page: paragraphs, list items, headings and cells of tables."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "\n\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]+`", "X", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text))
    for block in re.split(
        r"\n\s*\n|\n(?=#|\s*[*-] |\s*\d+\. |\|)|(?<=[^|\n])\|(?=[^|\n])", re.sub(r"<[^>]+>", "", text)
    ):
        yield re.sub(r"[*_|#]+", " ", block)


def helps(command: click.Command) -> Iterator[str]:
    """Yield the help texts of a command, of its options and of its subcommands."""
    yield from (command.help or "").split("\n\n")
    yield from (option.help or "" for option in command.params if isinstance(option, click.Option))
    for subcommand in command.commands.values() if isinstance(command, click.Group) else ():
        yield from helps(subcommand)


def texts() -> Iterator[tuple[str, list[str]]]:
    """Yield each text with its name, in blocks."""
    for path in ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))):
        yield path, list(markdown((ROOT / path).read_text()))
    yield "help of commands", [*helps(main.cli), *BUILT_IN.values()]
    pages = (page for folder in ("webapp", "jobs/web") for page in sorted((ROOT / folder).rglob("*.html")))
    templates = "\n\n".join(page.read_text() for page in pages)
    shown = re.sub(
        r"<(script|style).*?</\1>|{#.*?#}|{%.*?%}|<[^>]+>", "\n\n", re.sub(r"{{.*?}}", "X", templates), flags=re.DOTALL
    )
    yield "page templates", shown.split("\n\n")


def report() -> bool:
    """Print the figures of each text. Return whether all of them keep the limits."""
    fine = True
    print(f"{'text':28} {'words':>6} {'average':>8} {'longest':>8} {'banned':>7}")
    for name, blocks in texts():
        sentences = [
            s for block in blocks for s in re.split(r"(?<=[.!?])\s+|:\s*\n", block) if len(re.findall(r"\w+", s)) > 2
        ]
        lengths = [len(re.findall(r"[\w'.,/-]*\w[\w'/-]*", sentence)) for sentence in sentences]
        found = [m[0] for s in sentences for m in re.finditer(rf"\b(?:{BANNED})\b", s, re.IGNORECASE)]
        average, longest = sum(lengths) / len(lengths), max(lengths)
        good = average <= AVERAGE and longest <= LONGEST and not found
        print(
            f"{name:28} {sum(lengths):6} {average:8.1f} {longest:8} {len(found):7}", "" if good else "  over the limits"
        )
        if not good:
            fine = False
            long = [sentence for sentence, length in zip(sentences, lengths, strict=True) if length > LONGEST]
            print(*(f"    {' '.join(text.split())}" for text in [*long, *found]), sep="\n")
    return fine


if __name__ == "__main__":
    sys.exit(not report())
