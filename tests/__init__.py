"""The tests mirror the packages; `contract` and `system` run whole stacks."""
