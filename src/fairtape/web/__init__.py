"""The ticker for browsers and ordinary programs: WebSocket and HTTP over what one site has released.

A server follows the journal of one site. A message goes out when it is released and never before, and a slow customer
cannot hold up the site. `live_ticker` to `broadcast` decide and know no socket; the others put them on sockets, below
uvicorn.

- `live_ticker`: the live end of a journal, its recent past and the last sale of every symbol
- `subscription`: what a customer asks for; `encoding`: what it is sent, as JSON or as binary records
- `broadcast`: each customer with its replay of the past and its backlog, and all customers by subscription
- `websocket`: one WebSocket; `request_timeout`: limits on a connection before its request is read
- `history`: ranges of the past; `api`: HTTP
- `server_loop`: the rounds of a server; `server`: all of it as one server
"""
