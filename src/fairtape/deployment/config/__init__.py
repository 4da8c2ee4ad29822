"""What a deployment is: its file, its keys, the addresses it uses on one machine."""
