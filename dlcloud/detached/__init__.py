"""Clusters that are left to one of their own instances: hand one over, find it again, fetch its results.

No second controller exists: the instance runs the same `up`. A plain `up` imports nothing of this package.
"""
