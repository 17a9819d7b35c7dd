"""The heads; each module that needs a framework says so when it is imported."""
