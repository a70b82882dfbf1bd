"""Talks to Kubernetes and knows no job: API client, lists, watches, retries, rights, capacity."""
