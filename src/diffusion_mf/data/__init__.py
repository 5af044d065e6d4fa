"""Corpora: readers, writers, label schemes, vocabulary, batches, statistics, synthetic corpus."""
