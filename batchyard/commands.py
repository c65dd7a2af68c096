"""The names of the terminal's commands, which no recipe can take."""

# fmt: off
COMMANDS = frozenset({
    "audit", "cancel", "config", "demo", "doctor", "files", "job", "key", "list", "logs", "map", "migrate", "models",
    "open", "pause", "project", "results", "resume", "retry", "run", "schedule", "set", "status", "submit", "top", "up",
    "usage", "webhook",
})
# fmt: on
