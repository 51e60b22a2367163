"""Scripts that train elastically; each runs alone, too: `python3 -m trainer.examples.digits`."""
