"""What could be run, before it runs: plans, benches, races, deadlines, predictions and instance types.

In: decisions of `planning`, `scheduling` and `prediction`. Out: sections. Estimates are marked.
"""
