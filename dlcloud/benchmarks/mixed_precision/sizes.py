"""Say which networks there are and how large their images are; imports no framework."""

# Height and width in pixels. Source: the papers named in networks.py; for EfficientNet the authors' program.
SIZES = {
    "vgg16": 224,
    "mobilenet": 224,
    "resnet50": 224,
    "efficientnet-b0": 224,
    "efficientnet-b1": 240,
    "efficientnet-b2": 260,
    "efficientnet-b3": 300,
    "efficientnet-b4": 380,
    "efficientnet-b5": 456,
    "tiny": 32,
    "digits": 8,
}

DEPTHWISE = frozenset(name for name in SIZES if name.startswith(("mobilenet", "efficientnet", "tiny")))
"""Those with depthwise convolutions."""

DIGITS = "digits"
"""The one that is trained to the end, on real images."""
