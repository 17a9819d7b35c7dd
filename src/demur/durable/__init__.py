"""Durable storage: transactions, hash chain, keys, files that appear whole."""
