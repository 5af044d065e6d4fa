"""How a GPU is kept busy: batches in one copy, work recorded once per shape and replayed, blocks compiled.

None of it changes what is computed; `docs/speed.md` says what each part is worth.
"""
