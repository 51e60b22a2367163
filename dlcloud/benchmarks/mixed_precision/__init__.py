"""Compare training steps in FP32 with bf16, fp16 and TF32, in PyTorch and in Keras.

The frameworks are imported in workers only; the program itself needs none.
"""
