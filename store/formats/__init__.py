"""File formats that several packages share. Each is written and read only here."""
