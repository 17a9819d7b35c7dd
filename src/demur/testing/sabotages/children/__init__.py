"""What reaches the processes that a sabotaged one starts."""
