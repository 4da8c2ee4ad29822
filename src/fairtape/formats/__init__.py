"""External formats: ITCH, MoldUDP64, SoupBinTCP, OUCH, FIX and DBN, to and from values. Pure.

Prices are integers with the decimals of their format, times are integer nanoseconds. Malformed bytes raise a
`FormatError` that names what was found and what was expected, and nothing else.

- `itch`: Nasdaq TotalView-ITCH 5.0: messages, whole files as Arrow tables, trades, and the ticker in ITCH form
- `framing`: messages with a length prefix, as in files and datagrams
- `moldudp64`: the packets of MoldUDP64
- `soupbintcp`: the packets of SoupBinTCP in a stream of bytes
- `ouch`: order entry of OUCH 4.2, which SoupBinTCP carries
- `fix`: FIX 4.4: the codec of a stream, the dictionary, session and order messages
- `dbn`: trades as DBN, where `databento-dbn` is installed
- `fixed_layout`: messages of fixed layout, described by annotations; `byte_columns`: one field of many such messages
"""
