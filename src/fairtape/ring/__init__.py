"""RMP and TRMP, the protocols of the token ring. Pure.

membership   formations of a loop, and how one follows another
receiver     the receiver side: buffering, ordering, recovery, acknowledgment, release
sender       the source side: transmission, retention, flow control
"""
