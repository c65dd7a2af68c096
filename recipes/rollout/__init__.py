"""Recipe `rollout`: its program, its options, its metrics, and what it leaves behind."""
