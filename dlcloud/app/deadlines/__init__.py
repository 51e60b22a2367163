"""`dlcloud deadlines` and `dlcloud simulate`: deadlines and spot policies, before any money is spent.

In: a recipe, availability traces or the account's spot prices. Out: what each deadline is expected to cost.
`cli` calls them. It launches nothing.
"""
