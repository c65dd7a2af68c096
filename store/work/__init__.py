"""Work: what batches and jobs share. Their differences stand in store.batches and store.jobs."""
