"""The one protocol that every benchmark measures by, and the records it leaves.

Knows no framework and no benchmark: the standard library only.
"""
