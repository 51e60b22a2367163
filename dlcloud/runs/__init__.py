"""Run a workload on running instances, and stream its samples to the launcher, which stores them.

In: a plan carried out, that is, instances with a connection. Out: runs with their records in the store.
`dlcloud up` and `dlcloud bench` call it. It never launches or terminates an instance.
"""
