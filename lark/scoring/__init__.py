"""Score trajectories: the student's forward pass, exact statistics, and the methods that use them."""
