"""The kind of recipe `tune`, a plug-in: its cells, what they measure, and the models that they derive."""
