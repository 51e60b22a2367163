"""Compare image networks in fp32 with their int8 form, on each inference engine.

Each engine is imported in its own workers only; the program itself needs none.
"""
