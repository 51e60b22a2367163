"""`dlcloud bench`: several instance types in parallel, their results, and what would settle a tie.

In: types, benchmarks or a recipe. Out: one cluster a type, launched, measured and ended at the same time.
`cli` calls `run.py`. It computes no ratio and no interval: `results` does.
"""
