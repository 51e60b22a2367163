"""Find what travels with dlcloud as text: templates and recipes, from a checkout or from a wheel.

Never renders secrets into anything that is kept.
"""
