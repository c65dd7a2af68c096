"""Who may use the deployment: API keys and projects, for administrators."""
