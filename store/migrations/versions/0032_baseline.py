"""the schema that the first migration finds"""

revision = "0032"
down_revision = None


def upgrade() -> None:
    """Change nothing: a new database begins with the tables of store.records (see env.py)."""
