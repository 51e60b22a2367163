"""The use cases of an account: doctor, instance types, self-test, images, leftovers, the IAM policy.

In: a region and credentials. Out: what the account has and allows, and what is removed from it. `cli` calls
the modules. It runs no workload, apart from the self-test's.
"""
