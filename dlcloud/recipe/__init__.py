"""A recipe as users write it: YAML in, a checked `Recipe` out, or the line of each fault.

`recipe.py` is the whole; `instances.py`, `workload.py`, `experiment.py`, `deadline.py`, `network.py` and
`data.py` are its parts, made of what `values.py` has. `document.py` reads YAML, `profile.py` joins an
account's defaults, `overrides.py` the options of a command. `requirements.py` reads files of packages,
`kept_results.py` and `sent_files.py` decide on files; `script_recipe.py` and `batch.py` write recipes of
scripts and Batch jobs. `planning` and the commands call it. It never asks a cloud, and it knows no instance
that runs.
"""
