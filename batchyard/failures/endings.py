"""How processes end: by an exit code, by a signal, or as Ray says it of an actor."""

import re
import signal

from batchyard.failures.reasons import MAX_CAUSE, one_line, without_guesses
from batchyard.wording import cut


def ending(exit_code: int) -> str:
    """Return how a process ended, behind its name."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was ended by signal {-exit_code}"


def actor_death(text: str) -> str:
    """Return why a Ray actor died, from the text of Ray's error."""
    text = one_line(text)
    _, _, detail = text.partition("The actor is dead because ")
    if memory := re.search(r"running low on memory.*?(?:threshold of \d+(?:\.\d+)?|$)", text):
        return f"Ray ended the engine's process, since the node was {memory[0]}"
    if re.search(r"\bnode (?:has |was |is )?(?:died|dead|lost|terminated)|node failure|\bits node\b", text):
        return "the node of the engine's process has died"
    if "connection error code 2" in text or "Worker unexpectedly exits" in text:
        return "the process of the engine's actor ended without a word: it was killed, or it crashed"
    return cut(without_guesses(detail or text).strip(), MAX_CAUSE)
