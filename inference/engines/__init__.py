"""The engines: what turns request bodies into response bodies. Each is a sibling that knows no other."""
