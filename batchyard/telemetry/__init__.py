"""Telemetry: spans of batches, jobs and requests, sent by OTLP if the environment's OTEL_* variables name a collector.

Only `exporting` imports OpenTelemetry, and only `spans` imports that, at the first span of a process that sends any.
"""
