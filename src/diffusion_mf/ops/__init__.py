"""Numerical kernels: one folder per operation, each with a reference, a CPU path and a Triton kernel."""
