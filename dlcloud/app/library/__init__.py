"""What `import dlcloud` offers: the use cases of commands as functions, whose results are rows.

In: Python values. Out: rows, or a `DlcloudError`; never an exit. `dlcloud/__init__.py` names what is public,
and imports it when it is first used.
"""
