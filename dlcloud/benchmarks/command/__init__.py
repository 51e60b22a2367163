"""The user's own command under the same protocol; the standard library only."""
