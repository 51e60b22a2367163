"""The one protocol that every benchmark measures by, and the records it leaves.

Imports no framework and no benchmark, only the standard library.
"""
