"""Order entry on real connections: the servers of one gateway, and what lies between them and the ring.

- `order_gateway`: the gateway with its order log: a request is durable before it is published or answered
- `authenticator`: checks passwords in threads, so that other clients do not wait
- `streams`: TCP connections with limits, and TLS
- `native_server`, `native_messages`: JSON lines, the protocol of the Python client
- `ouch_server`: OUCH 4.2 over SoupBinTCP
- `fix_server`, `fix_orders`: FIX 4.4 sessions on connections, and their messages as requests and reports

All of them run in one event loop. A client that does not read, is silent or sends too much loses its own connection
only.
"""
