"""Compare TensorFlow's settings in training: stock, an article's, and today's best.

TensorFlow is imported in workers only; the program itself needs none.
"""
