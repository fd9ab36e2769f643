"""The embedded demo: generated problems, synthetic teachers, benchmarks, and the recipe of the shipped student."""
