"""Recipe `tune`: which cells there are and come next, what their measurements say, reports and plots."""
