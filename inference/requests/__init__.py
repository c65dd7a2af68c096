"""What is known of a request without running it: its body, its length, its order."""
