"""Decoders of local reports: clusters by likelihood under the known noise."""
