"""Keep an elastic training job going: follow its workers, replace who is interrupted, let go who is too many.

The workers agree on each step among themselves; nothing here is in the way of a step, and where the
controller is gone the training goes on. Decides by `core.elastic`; never prints.
"""
