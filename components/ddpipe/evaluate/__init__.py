"""A trained model -> how good it is on the test split, and an HTML report."""
