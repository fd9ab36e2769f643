"""Choose trajectories and weight them."""
