"""Rows and labels: in memory, in files and on other machines, read chunk by chunk."""
