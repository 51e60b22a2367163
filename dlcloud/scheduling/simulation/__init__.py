"""Replay of spot policies over availability traces: pure values; never reads a file or a clock."""
