"""Intake: what comes in becomes a validated plan."""
