"""Training: objective, optimisation, checkpoints, evaluation during training."""
