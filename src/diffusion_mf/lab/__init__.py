"""What compares and demonstrates: synthetic corpora, demo, experiments, benchmarks; only the command line imports it."""
