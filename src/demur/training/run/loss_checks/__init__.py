"""What is checked of a loss before anything is paid, on made-up inputs."""
