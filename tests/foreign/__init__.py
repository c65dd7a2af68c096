"""Clients of others, unmodified. Most have environments of their own, which `make foreign` and `make lm-eval` make."""
