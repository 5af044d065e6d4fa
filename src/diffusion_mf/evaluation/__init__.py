"""Metrics, as the paper defines them."""
