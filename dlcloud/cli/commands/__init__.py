"""One module a command: its options and its help; `command` is the click command.

In: the words of the user, checked by click. Out: a call of a use case by its name. `dlcloud/cli/main.py`
imports the module of the command that was typed, and no other.
"""
