"""LARK: learnability-grounded selection of teacher trajectories for reasoning distillation."""
