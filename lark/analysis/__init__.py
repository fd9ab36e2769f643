"""Measurements outside the main run: exact gradients and learnability, the theory's constants,
contamination, timings.
"""
