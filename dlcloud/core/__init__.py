"""Decide: recipes, plans, costs, errors, events, and the protocols that the floors above carry out.

Pure values in, pure values out: no file, clock, network, logging or environment is touched here.
"""
