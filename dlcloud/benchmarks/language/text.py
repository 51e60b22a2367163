"""The text that a small network learns: Python's own help, which every Python carries; imports no engine."""

from pydoc_data import topics

HELD_OUT_FILE = "held_out.json"
"""Beside a trained network: the tokens that it was not trained on."""

HELD_OUT_SHARE = 0.1


def read_text() -> tuple[bytes, bytes]:
    """Return the text to train on and the text to judge by; a byte is a token."""
    text = "\n\n".join(topics.topics[name] for name in sorted(topics.topics)).encode()
    border = round(len(text) * (1 - HELD_OUT_SHARE))
    return text[:border], text[border:]
