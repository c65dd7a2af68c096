"""The endpoints of the inference API: what each takes, what of it is the prompt, and what an answer holds."""
