"""What a region offers: instance types and prices, from AWS or from the bundled, dated tables.

In: names of types. Out: hardware and prices with their date and source. Never launches.
"""
