"""Recipes, one module each, and the registry of recipes, rewards and gates. Authors import `batchyard.recipes` only."""
