"""Whether the models of models.toml can run on this machine, found out before a batch waits for them."""
