"""What people see of jobs: their routes under /v1, and their pages."""
