"""What is measured beside the main run: exact gradients and learnability, the theory's constants, contamination, timings."""
