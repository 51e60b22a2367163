"""Language models: prompts and generation, training, and load on a server.

It measures networks by their published configurations and must never claim a quality of random weights.
"""

import logging
import sys

# optimum brings torchvision, which no language model needs; transformers fails where that is of another build
# than PyTorch: CUDA's next to that for CPUs.
sys.modules["torchvision"] = None  # type: ignore[assignment]

# Each start would warn of kernels for GPUs that torchao cannot load, and of how torchao registers its types.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
