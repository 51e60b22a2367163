"""Benchmarks as stand-alone programs: `python3 -m benchmarks.NAME` on any machine, no dlcloud needed.

Imports the standard library, the framework under test and itself. Records go out as JSON lines.
"""
