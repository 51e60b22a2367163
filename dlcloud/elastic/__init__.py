"""Keep an elastic training running: follow its workers, replace interrupted ones, let surplus ones leave.

`train.py` is the way in. The workers agree on each step among themselves; nothing here delays a step, and if
the controller is gone the training continues. What to request is decided in `dlcloud.scheduling`. Never
prints.
"""
