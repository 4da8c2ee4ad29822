"""Publishing into a ring as one of its sources.

- `source_runtime`: one source on its sockets, or a group of them
- `target`: what a publisher needs to know about a ring
- `publisher`: trades at a pace, until all are acknowledged
- `source_thread`: a source in its own thread, with a queue
- `floor_request`: one request to the trading floor, and its answer
- `revision`: the trade that a cancel or a correction refers to
- `time_sort`: trades sorted by time
"""
