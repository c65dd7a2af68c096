"""How recipes write their reports: blocks as Markdown, tables as CSV, lines of JSON, plots as SVG files."""
