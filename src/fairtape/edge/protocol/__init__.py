"""The edge: what lies between a receiver's releases and a customer's ear. TRMP 2001 §4.1, §4.3, §7.1.

Data goes one way: the order is split into stripes and numbered (`sequencer`), printed (`encoder`), paced and sent
(`remulticaster`), lost, arbitrated and heard (`customer`). What was lost is asked for at a `retransmitter` (R_x), in
datagrams, or replayed by a `soupdesk`, over a stream. All of them are machines without input or output, and a driver
turns them.

- `sessions`: the names of MoldUDP64 sessions; an edition is one plan in force, a standing is a place in it
- `marks`: messages of our own inside the sessions: begun, over, reformed, opaque payloads
- `assignment`: who speaks to which region, as it follows from a formation
- `pacing`: a bit rate that is kept, and the queue in front of it
- `archive`, `places`: what was released, by number; where in the order a number lies
- `effects`, `records`: what the machines ask for; what a customer is told
"""
