"""What the experiments share: composing a sweep, planning it, reading its artifacts, writing its report."""
