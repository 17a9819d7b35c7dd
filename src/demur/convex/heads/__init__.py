"""The private classifiers, and what is released of each."""
