"""The source side of the ring. Pure.

transmission   blocks are packed, sealed, sent, and retransmitted until acknowledged
retention      acknowledged blocks are kept until settled
window         flow control: window, packet size, pace
"""
