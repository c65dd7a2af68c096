"""What several test files share: stacks, servers, receivers, rows."""
