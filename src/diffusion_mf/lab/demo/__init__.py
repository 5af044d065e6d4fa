"""The demonstration: three systems on the synthetic corpus, and labels emerging from noise."""

from __future__ import annotations

from diffusion_mf.lab.demo.run import run_demo

__all__ = ["run_demo"]
