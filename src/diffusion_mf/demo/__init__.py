"""The demonstration: three systems on the synthetic corpus, and labels emerging from noise."""

from diffusion_mf.demo.run import run_demo

__all__ = ["run_demo"]
