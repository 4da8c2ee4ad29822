"""Order entry: the servers that traders connect to, the checks of a gateway, and its storage.

An order passes these modules, in this order:

1. `servers.streams` (native, OUCH) or `servers.fix_server` (FIX) reads bytes from a connection.
2. `servers.native_server` with `native_messages`, `servers.ouch_server`, or `session.acceptor` with
   `session.fix_session` turns the bytes into messages of a logged-in client; `servers.authenticator` has checked the
   login.
3. The same server, or `servers.fix_orders` for FIX, turns the message into a `NewOrder`, `Cancel` or `Replace`.
4. `servers.order_gateway` passes it to `core.gateway_core`, which checks it against the floor and the pending requests
   and numbers it.
5. `servers.order_gateway` appends it to `storage.order_log`, syncs, and publishes it to the ring. Only then does the
   server answer.
6. When the ring delivers it, `core.gateway_core` applies it to the floor, and `core.blotter` turns the floor's outputs
   into order events.
7. `servers.order_gateway` marks it as placed in the order log and passes the events to the servers, which report them
   to their clients.

- `core`: the checks and the state of a gateway. Pure
- `session`: FIX sessions. Pure
- `servers`: native, OUCH and FIX servers on real connections, in one event loop
- `storage`: accounts, FIX session stores, the order log
"""
