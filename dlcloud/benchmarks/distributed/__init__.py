"""The programs of the recipes that run as one job over several nodes, each an example of its engine.

They take what they know of the nodes from the variables in docs/nodes.md. Servers are started in order, each
healthy before the next, and stopped in reverse.
"""
