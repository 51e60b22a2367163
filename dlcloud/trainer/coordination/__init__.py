"""How the workers of a run agree: on the participants of each step, and on what was committed.

In: requests of workers over TCP. Out: agreements, and the ledger of committed steps. The lighthouse serves
it; the loop and the agent are its clients. It never touches a model, and imports no PyTorch.
"""
