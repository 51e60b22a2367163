"""Turn what was measured into tables: cost per throughput, with dates and intervals.

Reads values, returns text; never touches the cloud or the store itself.
"""
