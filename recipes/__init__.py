"""Recipes, and the registry of recipes, rewards and gates. Pure: nothing here knows the store, Celery or Ray.

Authors of recipes import `batchyard.recipes` only.
"""
