"""Rounding as in the paper's tables."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal


def half_up(value: float, digits: int) -> str:
    """``value`` to ``digits`` decimals, ties away from zero, as the paper's tables round.

    The shortest decimal that names the float is what gets rounded, so that 0.35 becomes 0.4 although the nearest binary
    number lies below it.

    >>> half_up(0.35, 1), half_up(16.25, 1), half_up(14.0, 0)
    ('0.4', '16.3', '14')
    """
    return str(Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP))
