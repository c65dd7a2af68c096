"""Fuzz parsers: `python -m tests.fuzzing MINUTES [PARSER …]`."""

from __future__ import annotations

import argparse

from hypothesis import HealthCheck, settings

from tests.fuzzing import parsers

if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Fuzz each parser that a stranger reaches.")
    arguments.add_argument("minutes", type=float)
    arguments.add_argument("parser", nargs="*", choices=[[], *parsers.PARSERS])
    options = arguments.parse_args()
    settings.register_profile("random", deadline=None, suppress_health_check=list(HealthCheck))
    for name in options.parser or parsers.PARSERS:
        print(f"{name}: {parsers.fuzz(name, options.minutes * 60):,} inputs", flush=True)
