"""The explorer: a web page on the artifacts of a store, read-only (docs/explorer.md). Run as: python -m
lark.explorer outputs/
"""
