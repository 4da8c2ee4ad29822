"""Order entry on real connections: the servers of one gateway, and what stands between them and the ring.

- `gateway`: the gateway with its memory: nothing is answered before it is kept, and nothing is entered before that
- `authenticator`: checks passwords in threads of its own, so that nobody waits for somebody else's
- `fix_server`, `fix_orders`: FIX 4.4 sessions on connections, and their messages as requests and reports
- `streams`: connections with limits; `native`: JSON lines, which the Python client speaks, `native_words`: their words
- `ouch_server`, `ouch_orders`: OUCH 4.2 over SoupBinTCP

All of them run in one event loop. A trader who does not read, says nothing or says too much loses its own connection.
"""
