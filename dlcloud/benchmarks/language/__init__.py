"""Language models: prompts and generation, training, and load on a server.

It measures networks by their published configurations and must never claim a quality of random weights.
"""

import sys

# optimum brings torchvision, which no language model needs; transformers fails where that is of another build
# than PyTorch: CUDA's beside that for CPUs.
sys.modules["torchvision"] = None  # type: ignore[assignment]
