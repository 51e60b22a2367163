"""What int8 is worth: the same network in fp32 and quantized, on each inference engine.

Each engine is imported in its own workers only; the program itself needs none.
"""
