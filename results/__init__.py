"""Reading results: what pages, downloads, the API and the terminal show of answers, while work runs and afterwards."""
