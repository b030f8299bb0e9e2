"""What should run, what does, what to start next."""
