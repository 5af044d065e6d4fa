"""Comparisons and demonstrations: synthetic corpora, demo, experiments, benchmarks; imported only by the command line."""
