"""The use cases of recipes as texts: the bundled ones, the schema, and `init` for a script.

In: a name, or the user's script. Out: a recipe's text. `cli` calls them. It asks no cloud.
"""
