"""The hidden commands that instances run: control of a cluster, and its take-over.

In: what the launcher or a template passes. Out: a call of a use case. No help lists them.
"""
