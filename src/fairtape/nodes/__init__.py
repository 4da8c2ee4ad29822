"""The papers' roles composed from machines: source and receiver. Pure."""
