"""``dmf benchmark``: efficiency tables."""

from __future__ import annotations

import typer

app = typer.Typer(help="Efficiency tables.", no_args_is_help=True)
