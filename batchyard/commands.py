"""The names of the terminal's commands, which no recipe can take."""

# fmt: off
COMMANDS = frozenset({
    "audit", "backup", "cancel", "chat", "classify", "config", "delete", "demo", "doctor", "embed", "eval", "files",
    "job", "key", "list", "lm-eval", "logs", "map", "migrate", "models", "open", "pause", "project", "rerank",
    "restore", "results", "resume", "retry", "run", "schedule", "set", "status", "submit", "tool", "top", "transcribe",
    "up", "usage", "webhook",
})
# fmt: on
