"""One command on several nodes in parallel: the head starts it everywhere, and ends it where one node fails.

`python -m benchmarks.nodes.head` runs on rank 0, `python -m benchmarks.nodes.node` on each other node. To
the harness the head is the command that is measured. The standard library only.
"""
