"""An account: its limits, IAM roles, the bill, and what of dlcloud's is left over in it.

In: names and tags. Out: values of `model` and `planning`. `gc` deletes; this only lists, apart from roles.
"""
