"""What computes states and scores: encoders, denoisers, attention, scorers."""
