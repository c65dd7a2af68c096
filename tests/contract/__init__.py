"""OpenAI's wire contract, against a running stack."""
