"""Alembic's entry point: runs the migrations on the connection that store.database hands over.

A database without a schema gets the tables of store.records as they are, and counts as migrated.
"""

from alembic import context

from store.records import Base

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=Base.metadata)
migration = context.get_context()
if migration.get_current_revision() is None:
    Base.metadata.create_all(connection)
    migration.stamp(context.script, "head")
context.run_migrations()
