"""FIX 4.4 sessions without input or output: bytes and instants go in, effects come out, for both sides of a connection.

- `fix_session`: one side of one session, acceptor or initiator, its options, and the contract of its store
- `acceptor`: all sessions of one acceptor, and the connections that they use
- `effects`: what a session asks of its driver and its application

A turn of the driver is: pass in what was received, carry out what concerns the application, make the store durable, and
only then write. So what was received and what was answered become durable together, and nothing is sent before it is
stored.
"""
