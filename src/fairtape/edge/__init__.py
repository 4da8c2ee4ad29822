"""Delivery to customers: remulticast of released messages on stripes, and repair of what was lost. TRMP 2001 §4.1.

- `protocol`: machines without input or output: numbering, encoding, sending, repair, replay, and the customer
- `service`: the same machines on sockets, journals and files
- `status`: what they report to the operator
"""
