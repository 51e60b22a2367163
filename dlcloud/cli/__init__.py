"""The command line: options, help and completion, and how an error becomes a message and an exit code.

In: the words of the user. Out: a call of a use case in `dlcloud/app`, by its name (`invoke.py`), so that
--help imports neither boto3 nor pydantic. It never does anything itself.
"""
