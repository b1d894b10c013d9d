"""What a config trains, in words and formulas, without loading a model or data: ``roll-lightning explain``.

Each part of an objective describes itself by a method ``formula``; here they are put together, in the notation of
docs/algorithms.md.
"""
