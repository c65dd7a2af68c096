"""Tables in files: one reader of all formats, one renderer of templates, one rule for cells.

`formats` says what a file's name tells and decompresses, `reading` yields rows, `cells` makes texts of values,
`images` content parts, `template` puts them into prompts, `columns` says in which order it puts all of them. Errors are
those of `reading.TableError` and `cells.CellError`; each door translates them into its own.
"""
