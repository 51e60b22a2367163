"""The commands that print a text for another program: a shell, IAM, an editor, an agent.

In: options. Out: a call of a use case. None of them asks a cloud or changes anything.
"""
