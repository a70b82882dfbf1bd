"""Talks to Kubernetes and knows no job: API client, watches, retries, rights, capacity."""
