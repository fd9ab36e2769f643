"""Teaching: questions, the rollouts of teachers, and their verdicts. The stage before a pool."""
