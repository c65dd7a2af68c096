"""Modules that every package shares (settings, errors, models.toml), the command line and the local stack.

Only the command line and the local stack know a database, a queue, a route or an engine.
"""

__version__ = "0.1.0"
