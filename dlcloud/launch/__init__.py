"""Carry out a plan: launch, await, set up, take down; undo on failure.

Whatever it created and could not undo, it names. Never decides; `planning` did.
"""
