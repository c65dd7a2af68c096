"""Live requests: which engines they want, where these answer, and who starts them.

They pass through neither Celery nor the database; the gateway and the workers meet in Redis.
"""
