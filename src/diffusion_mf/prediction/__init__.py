"""Labelling sentences: device, precision, recorded graphs, memory, and the special paths of CPUs."""
