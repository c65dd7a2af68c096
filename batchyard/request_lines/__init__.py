"""Requests on their way in: lines of batch files, lists in the body of an API, likely mistakes."""
