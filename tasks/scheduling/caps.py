"""Caps of keys, to within what is in flight: Redis has what live requests used before the database has it.

Gateways write usage once a second. So they add what a request with a capped key used here before its response ends.
What batches used is in the database at once. Each sum only grows in its month, so the larger of both values is true,
whichever is late or lost.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, cast

from batchyard import tariffs
from batchyard.models import Tariff
from batchyard.tariffs import MICRO, Amounts
from store.accounting import budgets
from store.accounting.budgets import Standing
from tasks.context import AppContext
from tasks.published import warned

KEPT_SECONDS = 40 * 86_400
_RAISE = """
local sums = {}
for i = 1, #ARGV, 2 do
  local known = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0')
  if tonumber(ARGV[i + 1]) > known then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    known = tonumber(ARGV[i + 1])
  end
  sums[#sums + 1] = string.format('%.17g', known)
end
redis.call('EXPIRE', KEYS[1], tonumber(KEYS[2]))
return sums
"""

log = logging.getLogger(__name__)


def _name(standing: Standing) -> str:
    budget = standing.budget
    return f"batchyard:cap:{budget.project_id}:{budget.key_id}:{standing.month}:{budget.version}"


def current(context: AppContext, standing: Standing) -> Standing:
    """Return how a key's cap stands with what the database does not have yet; without Redis, as it is given."""
    values: Mapping[str, float] = {
        "live_tokens": standing.live_tokens,
        "batch_tokens": standing.tokens - standing.live_tokens,
        "live_spent": float(standing.live_spent * MICRO),
        "batch_spent": float((standing.spent - standing.live_spent) * MICRO),
    }
    arguments = [part for name, value in values.items() for part in (name, f"{value:.17g}")]
    with warned(log, "cap known from the database only"):
        found = cast(Any, context.redis.eval(_RAISE, 2, _name(standing), str(KEPT_SECONDS), *arguments))
        tokens, spent = (sum(map(float, found[index : index + 2])) for index in (0, 2))
        # To a millionth of a millionth: sums of floats are no exact money.
        exact = Fraction(round(spent * MICRO), MICRO * MICRO)
        return replace(standing, tokens=int(tokens), spent=max(standing.spent, exact))
    return standing


def add(context: AppContext, standing: Standing, tariff: Tariff | None, amounts: Amounts) -> None:
    """Add what a live request used, before its response ends."""
    prices = None if tariff is None else tariff.prices()
    with warned(log, "usage of a capped key known to the database only"):
        context.redis.hincrby(_name(standing), "live_tokens", amounts.input_tokens + amounts.output_tokens)
        if prices is not None and prices.currency == standing.budget.currency:
            spent = float(tariffs.cost(prices, amounts) * MICRO)
            context.redis.hincrbyfloat(_name(standing), "live_spent", spent)


def settle(context: AppContext, standing: Standing) -> Standing:
    """Announce how a budget stands now, and pause or resume work, unless that was done. Return how it stands."""
    if standing.budget.key_id:
        standing = current(context, standing)
    if budgets.is_news(standing):
        with context.database.write() as session:
            if budgets.announce(session, standing):
                ids = {"project_id": standing.budget.project_id, "key_id": standing.budget.key_id or None}
                log.warning("budget %s", standing.state, extra=ids)
    return standing
