"""What the monitor asks of the system and of its own threads: time, questions that may take long, systemd."""
