"""``dmf data``: statistics, conversion and the synthetic corpus."""

from __future__ import annotations

import typer

app = typer.Typer(help="Statistics, conversion, synthetic corpus.", no_args_is_help=True)
