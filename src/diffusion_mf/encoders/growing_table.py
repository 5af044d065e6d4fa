"""Rows that become more and more."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


class GrowingTable:
    """Rows in one piece of memory, with room for more; row 0 is zero and always there."""

    def __init__(self, width: int) -> None:
        self.memory: Float[Tensor, "R D"] = torch.zeros(1, width)
        self.num_rows = 1

    def add(self, number: int) -> Float[Tensor, "number D"]:
        """So many more rows, to be written to; they mean nothing yet."""
        start = self.num_rows
        self.num_rows += number
        if self.num_rows > len(self.memory):
            # Room for half as many again: growing row by row would copy the table each time.
            self._move(start, self.num_rows + self.num_rows // 2)
        return self.memory[start : self.num_rows]

    def cut(self, num_rows: int) -> None:
        """Forget all rows but the first; their memory stays for others."""
        self.num_rows = num_rows

    def release(self) -> None:
        """Give back most of the memory that holds no rows."""
        if self.num_rows + self.num_rows // 2 < len(self.memory):
            self._move(self.num_rows, self.num_rows + self.num_rows // 2)

    def _move(self, num_rows: int, room: int) -> None:
        # What is made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            memory = self.memory.new_empty(room, self.memory.shape[1])
        memory[:num_rows] = self.memory[:num_rows]
        self.memory = memory
