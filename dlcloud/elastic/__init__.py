"""Keep an elastic training running: follow its workers, replace interrupted ones, let surplus ones leave.

The workers agree on each step among themselves; nothing here delays a step, and if the controller is gone the
training continues. Decides by `core.elastic`; never prints.
"""
