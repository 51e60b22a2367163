"""One instance: its folder, programs, address, SSH server and metadata; must never know of API calls."""
