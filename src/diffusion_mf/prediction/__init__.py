"""The one way to label sentences: device, precision, recorded graphs, memory, what a CPU does otherwise."""
