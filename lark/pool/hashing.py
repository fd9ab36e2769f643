"""A short, stable hash of texts, the same in every process and on every machine."""

import hashlib


def hash64(*parts: str) -> int:
    text = "\x00".join(parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
