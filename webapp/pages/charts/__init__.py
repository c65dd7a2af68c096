"""Charts: the blocks of a job's view as shapes of an SVG, drawn on the server without a script."""
