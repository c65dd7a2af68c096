"""The bodies of requests, by kind of endpoint. They need pydantic, so they are imported when one is checked."""
