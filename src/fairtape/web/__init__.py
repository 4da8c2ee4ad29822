"""The ticker for browsers and ordinary programs: WebSocket and HTTP over what one site has released.

A server follows the journal of one site, so a message goes out when it is released and never before, and no customer,
however slow, can hold up the site. Decisions are made by plain objects that know no socket; `lines` and `door` are
their sockets, below uvicorn.

- `reading`: a place in the journal; `ticker`: the live end of it, its recent past and the last sale of every symbol
- `wishes`: what a customer asks for; `forms`: what it gets, as JSON or as binary records
- `customers`, `hub`: who gets what, when, and what becomes of those who are slow; `replays`: the past, then the present
- `lines`, `door`: one WebSocket, and what stands before it; `api`: HTTP; `serving`: all of it as one server
"""
