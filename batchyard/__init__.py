"""What every part of Batchyard shares: settings, errors, models.toml; and the command line over them.

Nothing here knows a database, a queue, a route or an engine, except the command line and the local stack.
"""

__version__ = "0.1.0"
