"""What was used and what it cost, by batch, model and day. No tariffs: models.toml has them."""
