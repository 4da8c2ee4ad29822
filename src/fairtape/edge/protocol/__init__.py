"""The machines between the releases of a receiver and its customers. TRMP 2001 §4.1, §4.3, §7.1.

Data flows one way: the order is split into stripes and numbered, encoded as ITCH, paced and sent by multicast, and
received by customers, which arbitrate between two feeds. A customer requests what was lost from a retransmitter (R_x),
by datagram, or has it replayed over a stream. A driver runs the machines; they have no input or output of their own.

- `sessions`: names of MoldUDP64 sessions; editions (a plan in force) and positions in them; messages of our own inside
  the sessions: begun, over, reformed, opaque payloads
- `feed_assignment`: which receiver sends to which region, as a function of the formation
- `itch_codec`: all trades of a token as ITCH messages, and the readers of each session
- `stripe_sequencer`: numbers the messages of all stripes
- `remulticast`: sends the stripes of a receiver, each within its bit rate
- `archive`: released messages by number; an index from numbers to positions in the order
- `retransmitter`: repairs by datagram; `replay`: replays over SoupBinTCP
- `arbitration`: several feeds of one session become one sequence
- `customer`: receives stripes and requests what is missing
- `effects`: what the machines ask of their driver
"""
