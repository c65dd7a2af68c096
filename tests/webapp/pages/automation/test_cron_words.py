"""Cron expressions in words."""

from __future__ import annotations

import pytest

from batchyard import cron
from webapp.pages.automation import cron_words


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("30 6 * * *", "every day at 06:30"),
        ("30 6 * * MON-FRI", "at 06:30, Monday to Friday"),
        ("0 9,17 * * 1,4", "at 09:00 and 17:00, on Mondays and Thursdays"),
        ("0 9 * * 6-7", "at 09:00, on Saturdays and Sundays"),
        ("0 0 1,15 * *", "at 00:00, on the 1st and 15th of each month"),
        ("5 4 29 2 *", "at 04:05, on 29 February"),
        ("0 0 L * *", "at 00:00, on the last day of each month"),
        ("0 12 * JAN,JUL SUN", "at 12:00, on Sundays in January and July"),
        ("* * * * *", "every minute"),
        ("*/15 * * * *", "every 15 minutes"),
        ("*/10 9-17 * * 1-5", "every 10 minutes from 09:00 to 17:50, Monday to Friday"),
        ("0 * * * *", "every hour"),
        ("20 */6 * * 0-6", "every 6 hours at minute 20"),
        ("15 8-18 * * *", "every hour from 08:15 to 18:15"),
        ("*/7 * * * *", None),
        ("0 0 13 * FRI", None),
        ("0 0 * * MON#1", None),
        ("0 0 */2 * *", None),
        ("0-59/2 * * * *", None),
    ],
)
def test_common_expressions_are_said_in_words_and_others_not_at_all(expression: str, expected: str | None) -> None:
    assert cron.parse(expression, "UTC")
    assert cron_words.words(expression) == expected
