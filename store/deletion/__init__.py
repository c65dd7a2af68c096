"""What is deleted: expired, erased, and content that no record references."""
