"""The request and response models, by noun: OpenAI's API, and this project's extensions."""
