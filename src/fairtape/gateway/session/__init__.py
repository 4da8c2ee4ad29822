"""FIX 4.4 sessions without input or output: bytes and instants go in, effects come out, for both sides of a connection.

- `session`: one side of one session, acceptor or initiator
- `resending`: what is sent again when the other side asks for it
- `desk`: all sessions of one acceptor; connections come, name themselves and go
- `store`: what a session must remember beyond a connection, as a protocol and in memory
- `options`, `effects`: its settings, and what it asks of the world

A turn of the driver is: hand in what came, carry out what concerns the application, make the store durable, and only
then write. So what was received and what was answered become durable together, and nothing is said before it is kept.
"""
