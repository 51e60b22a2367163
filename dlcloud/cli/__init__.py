"""The command line: options, help and completion, and how an error becomes a message and an exit status.

One module has the commands of each group of `dlcloud --help` (`run.py`, `clusters.py`, `results.py`, ...), as
a click group called `commands`; `main.py` finds them, and `options.py` has the options that several share.
In: the words of the user. Out: a call of a use case in `dlcloud/app`, which the click function imports in its
body and calls with keywords, so that --help imports neither boto3 nor pydantic. It never does anything
itself.
"""
