"""The deletion service: learns by id, forgets on request, and can prove it."""
