"""The embedded demo: generated problems, synthetic teachers, benchmarks, and the recipe for the shipped
student.
"""
