"""The bodies of requests, a module for each endpoint. They need pydantic, so they are imported when one is checked."""
