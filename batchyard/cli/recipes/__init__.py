"""A command for every recipe, made from the JSON schema of its options, and `config`.

A recipe is a file of the operator, so its command is not known before the server, or the folder BATCHYARD_RECIPES, was
asked. That happens when the command is used; the names of the built-in recipes stand in `group`, and so `--help` is
quick.
"""
