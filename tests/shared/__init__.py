"""What several test programs use."""
