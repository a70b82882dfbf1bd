"""A trained model -> how good it is on the test split, and a report for people."""
