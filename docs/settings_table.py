"""Print the table of settings in docs/settings.md: python docs/settings_table.py."""

from __future__ import annotations

from batchyard.settings import CLIENT_VARIABLES, Settings, environment_name


def table() -> str:
    """Every setting with its default and meaning, as Markdown."""
    rows = ["| setting | default | |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = "" if str(field.default) == "" else f"`{field.default}`"
        rows.append(f"| `{environment_name(name)}` | {default} | {field.description} |")
    rows += [f"| `{name}` | | {meaning} |" for name, meaning in CLIENT_VARIABLES.items()]
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
