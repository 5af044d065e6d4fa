"""The one way to label sentences: precision, recorded graphs, memory, what a CPU does otherwise."""
