"""The demonstration: three systems on the synthetic corpus, and labels emerging from noise."""
