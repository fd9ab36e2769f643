"""Work on several machines: Ray and SLURM."""
