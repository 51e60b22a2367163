# needs: torch transformers accelerate
# Trainer under torchrun, two processes.
torchrun --standalone --nproc-per-node 2 hf_epochs.py
