"""People who sign in to the pages without an API key (a trusted proxy, OpenID Connect), and the audit of requests."""
