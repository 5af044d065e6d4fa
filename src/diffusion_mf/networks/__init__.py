"""The neural networks: encoders, denoisers, attention, scorers."""
