"""Remember: clusters, intents, runs and samples in SQLite, and the path of every file dlcloud keeps.

Never talks to a cloud. What exists there, the tags say; what was measured, the store says.
"""
