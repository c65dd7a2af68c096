"""What Python programs call: `batchyard.map`, from the rows of a table to the answers of a model.

A kind of table is known in `frames` alone, an output line in `answers`. The API client,
where its server is, and the wait for a batch are here, too; the terminal uses them.
"""
