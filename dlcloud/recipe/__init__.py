"""A recipe as users write it: YAML in, a checked `Recipe` out, or the line of each fault.

`recipe.py` is the whole, one module is one key; `document.py` reads YAML, `profile.py` joins an account's
defaults, `script_recipe.py` and `batch.py` write recipes of scripts and Batch jobs from a recipe.
`planning` and the commands call it. It never asks a cloud, and it knows no instance that runs.
"""
