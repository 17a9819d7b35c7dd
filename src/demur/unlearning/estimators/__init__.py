"""Estimators that forget, in the conventions of river and of scikit-learn."""
