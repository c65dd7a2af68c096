"""Rewards, one small module each: they judge an answer by its ground truth."""
