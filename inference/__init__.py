"""How rows are answered: Ray Data pipelines over resident engines. Knows no database, queue or HTTP route."""
