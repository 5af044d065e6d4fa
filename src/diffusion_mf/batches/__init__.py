"""Sentences as tensors: vocabulary ids, padding, packing, layouts of units, occurrences of forms in documents."""
