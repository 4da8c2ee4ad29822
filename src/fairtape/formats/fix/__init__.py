"""FIX 4.4: a codec of tag=value streams, and messages as values. Pure.

- `codec`: messages in a stream of tag=value bytes
- `dictionary`: tags, message types and reject reasons
- `fields`: typed fields, and messages as annotated dataclasses
- `admin_messages`: the messages of a session
- `order_messages`: the messages of order entry
"""
