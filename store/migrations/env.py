"""Alembic's entry point: runs the migrations on the connection that store.database hands over."""

from alembic import context

from store.records import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()
