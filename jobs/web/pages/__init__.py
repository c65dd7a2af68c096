"""The pages of jobs: one job, its items, and the form of a new one."""
