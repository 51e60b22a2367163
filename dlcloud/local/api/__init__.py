"""API calls as HTTP: read, verified, judged, limited and refused; must never know what a call does."""
