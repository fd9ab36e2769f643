"""The artifact store: artifacts, manifests, checksums, parts, locks, and what a disk can refuse."""
