"""Where arrays lie, and what the processes of one run agree on."""
