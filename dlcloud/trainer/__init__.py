"""Elastic training: workers join, drain and die at any step; no step, sample or learning rate is lost by it.

Stand-alone, copied alone to instances: imports the standard library, PyTorch and itself, never the
launcher. Must never take a step twice, or start a run over that has begun. A script adopts it in a few lines:
`training.py` says how, `examples/own_script.py` shows it whole, `python3 -m trainer.agent` runs it.
"""
