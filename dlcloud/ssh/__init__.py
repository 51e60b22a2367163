"""Reach instances: prove their host key, run commands, stream output, copy files, many at a time.

Knows addresses and keys, never instance types, recipes or the cloud.
"""
