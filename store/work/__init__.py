"""Work: what batches and jobs have in common. What is special to one kind stands in store.batches and store.jobs."""
