"""Time and memory of single parts of LARK beside the usual ways: `make bench` runs every script here."""
