"""The use cases of one cluster: up, hand-over, control, status, logs, exec, ssh, resize, down.

In: the options of a command, or the recipe of a controller. Out: instances that run a workload and end, and
what the user reads. `cli` calls them; an instance runs `control` and `take_over`. It decides no size
and no market: `planning` and `scheduling` do.
"""
