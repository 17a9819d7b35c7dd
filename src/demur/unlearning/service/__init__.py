"""The deletion service: a durable model with record ids, a journal and certificates."""
