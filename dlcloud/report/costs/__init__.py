"""What was measured, with its cost: the cost report, its answer, comparisons, and what a home spent.

In: rows of `results`. Out: sections and charts. A column is stated once, in `cost_columns.py`.
"""
