"""The endpoints of the inference API: what each takes, what of it is the prompt, and what an answer holds.

An endpoint is one entry in `catalog` and one model of its body in `bodies`. Engines say which of them they serve.
"""
