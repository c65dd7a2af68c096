"""The gateway: a small process before the web app, which answers live requests itself and passes all else on.

Streams last long, so they are an event loop's work, and they do not end with the web app.
"""
