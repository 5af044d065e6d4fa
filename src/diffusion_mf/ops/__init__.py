"""Numerical kernels: one folder per operation, each with a reference, fast paths, and one public function per result."""
