"""Who sends a request: API keys, a trusted proxy's headers, OpenID Connect; and the audit of requests."""
