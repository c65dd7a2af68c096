"""The items of a job for clients: lists, single items, results, and replies to them."""
