"""What mixed precision is worth: training steps in FP32 beside bf16, fp16 and TF32, in PyTorch and in Keras.

The frameworks are imported in workers only; the program itself needs none.
"""
