"""Jobs: their life and stages. A stage is an open batch of the store's core."""
