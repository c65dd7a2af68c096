"""Intake: requests come in and become a validated plan. Nothing runs here."""
