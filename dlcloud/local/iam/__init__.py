"""Who calls, and what that caller may do; must never change what a call acts on."""
