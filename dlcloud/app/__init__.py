"""What each command does: a module for each use case, which builds its collaborators and lets them work.

In: the options of a command, checked, as keyword arguments. Out: what the user reads (`terminal`), and an
exit status or an error. The click functions of `dlcloud/cli` call the use cases, and `library.py` does for
`import dlcloud`. It never imports click, and it decides nothing that a pure floor below can decide.

The packages hold use cases by subject; the modules next to them are what several subjects share: `context.py`
builds the light collaborators, `clouds.py` those that bring boto3, `machines.py` those that bring paramiko.
dlcloud's own settings are read from the environment in `context.py` and `profiles.py`. Other modules read or
pass on what belongs to others: the variables of the user's programs and secrets (`clusters/workload.py`),
those of AWS's plugin (`routes.py`), those that an instance gives its controller (`clusters/take_over.py`),
and those of child processes (`recipes/init.py`, `terminal/notification.py`).
"""
