"""Use the operating system safely: files replaced whole, locks between processes, work in parallel.

Below every package that touches files or starts threads. Knows nothing of clouds, clusters or stores.
"""
