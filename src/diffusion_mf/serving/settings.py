"""What a server allows, and how it batches."""

from __future__ import annotations

import dataclasses
from pathlib import Path

PAGE = Path(__file__).parent / "page"
"""static files; served at / if there is an index.html among them"""
WRITE_BYTES_PER_UNIT = 300
"""for label, score, offsets and span of a unit that is a sentence of its own"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits and habits of a server; times are in seconds."""

    body_bytes: int = 1 << 20
    """of a request, or of a line of a stream"""
    request_units: int = 20_000
    sentence_units: int = 2_000
    """the memory of a Transformer grows with the square of it"""
    detail_units: int = 1_000
    """of a request for trajectories or alternatives, whose answers are large"""
    waiting_units: int = 100_000
    """of requests that wait for one model"""
    open_requests: int = 1_000
    """being read, waiting or answered at a time"""
    body_seconds: float = 30.0
    """for a body to arrive; in a stream, between two pieces of it"""
    request_seconds: float = 30.0
    """from the arrival of the body to the answer"""
    shutdown_seconds: float = 30.0
    """for finishing what has been begun"""
    batch_units: int | None = None
    """computed at once; None: 2,000 on a CPU, the model's own number on a GPU"""
    batch_seconds: float = 0.003
    """the longest wait for requests to share a batch with"""
    is_batching: bool = True
    """whether requests share batches at all"""
    stream_lines: int = 64
    """of a stream, read ahead of the answers"""
    token: str | None = dataclasses.field(default=None, repr=False)
    """the bearer token that clients must have"""
    origins: tuple[str, ...] = ()
    """web sites whose pages may use the server (CORS)"""
    hosts: tuple[str, ...] | None = None
    """names by which clients may call the server, without ports; None: any"""
    page: Path = PAGE

    @property
    def write_bytes(self) -> int:
        """Of a request to write what may be labelled: the text as units and as texts, in which JSON escapes characters."""
        return 3 * self.body_bytes + WRITE_BYTES_PER_UNIT * self.request_units
