"""The database of a search: SQLite in its folder, or PostgreSQL for several machines."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from diffusion_mf.errors import InputError

SECONDS_BETWEEN_HEARTBEATS = 20
SECONDS_UNTIL_STALE = 120


def import_optuna() -> Any:
    """Optuna, quiet; one sentence where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise InputError("the search needs Optuna", remedy="pip install 'diffusion-mf[experiments]'") from None
    # Trials that are stopped or given up are no news.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_storage(url: str) -> Any:
    """The database of the search; ``postgresql://`` uses psycopg 3."""
    optuna = import_optuna()
    if url.startswith(("postgresql://", "postgres://")):
        url = "postgresql+psycopg://" + url.partition("://")[2]
    try:
        with warnings.catch_warnings():
            # Heartbeats have been "experimental" for years.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.storages.RDBStorage(
                url,
                heartbeat_interval=SECONDS_BETWEEN_HEARTBEATS,
                grace_period=SECONDS_UNTIL_STALE,
                engine_kwargs={"connect_args": {"timeout": 60}}
                if url.startswith("sqlite")
                else {"pool_pre_ping": True},
            )
    except ImportError:
        raise InputError(
            f"the database {without_password(url)} needs a driver", remedy="pip install 'psycopg[binary]'"
        ) from None
    except Exception as error:  # SQLAlchemy's errors have no common root that every version exports
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"the database {without_password(url)} cannot be used ({reason})", remedy="check --storage"
        ) from None


def without_password(url: str) -> str:
    """An address that may be shown.

    >>> without_password("postgresql://me:secret@host/name")
    'postgresql://…@host/name'
    """
    head, _, place = url.rpartition("@")
    return url if not head else f"{head.partition('://')[0]}://…@{place}"


def default_storage(folder: Path) -> str:
    """SQLite, in the folder of the search."""
    return f"sqlite:///{(folder / 'search.db').resolve()}"
