"""What tests share: where the repository is, and real data where it is present beside it."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Benchmarks, tokenizers and a real pool, kept outside the repository. Tests that need them skip where they are absent."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no ../shared/data beside the repository")
    return path
