"""Who may use the deployment and how much: API keys, projects, budgets; and what was used."""
