"""What each command does: one module a use case, which builds its collaborators and lets them work.

In: the options of a command, checked. Out: what the user reads (`terminal`), and an exit status or an error.
`dlcloud/cli` names the use case and resolves it when the command is invoked. It never imports click, and it
decides nothing that a pure floor below can decide.

The packages hold use cases by subject; the modules beside them are what several subjects share:
`context.py` builds the light collaborators, `clouds.py` those that bring boto3, `machines.py` those that
bring paramiko; only these three and `profiles.py` read the environment of the process.
"""
