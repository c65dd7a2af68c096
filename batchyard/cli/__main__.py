"""`python -m batchyard.cli` is `batchyard`."""

from batchyard.cli.main import main

main()
