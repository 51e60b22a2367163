"""The commands about an account, a module each; `dlcloud/app/account` has their use cases.

In and out: as `dlcloud/cli/commands`, whose modules they are.
"""
