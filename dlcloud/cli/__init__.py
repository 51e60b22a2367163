"""The commands, one module each, and the console; `context` is the one place that builds collaborators.

A command module imports only click at its top, so that `--help` stays fast.
"""
