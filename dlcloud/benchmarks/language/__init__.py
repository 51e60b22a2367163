"""Language models: prompts and generation, training, and load on a server.

It measures networks by their published configurations and must never claim a quality of random weights.
"""
