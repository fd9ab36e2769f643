"""How long processes wait for each other. Apart from the probe, whose imports take long."""

import torch
from torch import distributed


def group_timeout() -> float:
    """Seconds that a process waits for the others."""
    group = distributed.distributed_c10d._get_default_group() if distributed.is_initialized() else None
    return (
        group._get_backend(torch.device("cpu")).options._timeout.total_seconds() if group is not None else 0.0
    )
