"""Run a workload on instances that are up, bring its samples home and store them as they come.

Never launches or terminates an instance.
"""
