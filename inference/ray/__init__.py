"""Ray: the connection to the cluster and the Ray Data tasks that call the resident engines."""
