# needs: torch
# DistributedDataParallel under torchrun, two processes.
torchrun --standalone --nproc-per-node 2 _ddp.py
