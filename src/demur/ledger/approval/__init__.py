"""Approval of charges: requests, decisions, and what is compared under the lock."""
