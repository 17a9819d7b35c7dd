"""A deletion compared with a model that was trained without the record."""
