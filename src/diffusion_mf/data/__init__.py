"""Files ↔ sentences: formats, label schemes, documents, repair, checks, statistics; no tensors."""
