"""What a simulation takes where neither trace nor option says it."""

SPOT_SHARE = 0.318
"""A spot price over the on-demand price.

Source: 0.9731 over 3.06 USD for a V100, Wu et al., "Can't Be Late", NSDI 2024.
"""
CHANGEOVER_S = 1.8
"""Seconds without progress at a change of workers.

Source: about what tests/performance/elastic.py measured for a drain and a join, with room.
"""
