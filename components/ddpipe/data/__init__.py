"""The dataset format, shared by its writer (prepare) and its readers (train, evaluate, export)."""
