"""Run a workload on running instances, and stream its samples to the launcher, which stores them.

Never launches or terminates an instance.
"""
