"""Delivery to customers: remulticast of released messages on stripes, and repair of what was lost. TRMP 2001 §4.1."""
