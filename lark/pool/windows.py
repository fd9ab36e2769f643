"""Windows of a text: hashes of all its pieces of WIDTH bytes, white space left out, in a few passes of numpy.

They say how similar two texts are (duplicates.py) and how much of a text repeats itself (hygiene.py).
"""

import numpy as np

WIDTH = 32
BINS = 64
EMPTY = np.uint32(0xFFFFFFFF)
SPARSE = 8
"""Cells per window in the table that counts different windows."""
_ODD = np.uint64(0x9E3779B97F4A7C15)


def window_hashes(text: str) -> np.ndarray:
    """The hash of every window of a text. A shorter text is one window."""
    data = "".join(text.split()).encode("utf-8", "surrogatepass")
    hashes = np.frombuffer(data.ljust(WIDTH, b"\0"), dtype=np.uint8).astype(np.uint64)
    for width in (1, 2, 4, 8, 16):  # bytes per hash: each round doubles them
        hashes = hashes[:-width] * _ODD + hashes[width:]
        hashes ^= hashes >> np.uint64(29)
    return hashes


def sketch(text: str) -> np.ndarray:
    """The sketch of a text."""
    return sketch_of(window_hashes(text))


def sketch_of(hashes: np.ndarray) -> np.ndarray:
    """[BINS] the smallest hash in each bin; EMPTY for a bin without one."""
    bins = (hashes >> np.uint64(58)).astype(np.intp)  # the highest 6 bits, for 64 bins
    values = (hashes & np.uint64(0xFFFFFFFE)).astype(np.uint32)  # even, so never EMPTY
    smallest = np.full(BINS, EMPTY, dtype=np.uint32)
    np.minimum.at(smallest, bins, values)
    return smallest


def repeated_share(hashes: np.ndarray) -> float:
    """Share of windows that have appeared before. Counted in a table of cells (linear counting), because
    sorting would take longer than everything else; the error is below 0.01.
    """
    bits = (SPARSE * len(hashes)).bit_length()
    cells = np.zeros(1 << bits, dtype=bool)
    cells[(hashes * _ODD) >> np.uint64(64 - bits)] = True
    used = np.count_nonzero(cells) / len(cells)
    different = -np.log1p(-used) * len(cells)
    return max(0.0, 1 - float(different) / len(hashes))
