"""What an agent watches and runs on its instance: processes, notices, and the end of the instance.

In: the options of a command line, the metadata service, signals. Out: processes, notices, an instance that is
off. The agent and the lighthouse call it. It never trains, and imports no PyTorch.
"""
