"""Puts a model package to use, without torch: predictions of files, and a server."""
