"""Alembic's entry point: runs the migrations on the connection that store.database hands over."""

from alembic import context

import store.records  # noqa: F401  # its tables join those of Base
from store.records import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()
