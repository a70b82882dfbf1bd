"""A trained model -> a model package."""
