"""The use cases of what was measured: cost report, comparison, trainings, export and import.

In: the store's rows. Out: tables, pages and files. `cli` calls them; `clusters` prints a training by
`training.py`. It asks no cloud.
"""
