"""What was used and what it cost, by batch, model and day, and budgets of projects. No tariffs."""
