"""Gates, one small module each: a text passes, or does not and has a reason."""
