"""Sentences as tensors: vocabulary ids, padding and packing, layouts of units, occurrences of forms in documents."""
