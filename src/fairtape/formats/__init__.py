"""Other people's conventions, word for word: ITCH, MoldUDP64, SoupBinTCP, OUCH, FIX and DBN, to and from our values.

Pure: bytes go in and values come out, or the other way round; files and sockets are somebody else's. Prices stay
integers with the decimals of their format, times stay integer nanoseconds. Bytes that a format does not allow are
refused with a `Refused` that names what was found and what was expected, and nothing else is ever raised for them.

- `itch`: every message of Nasdaq TotalView-ITCH 5.0 as a value; the description from which everything else is derived
- `itch_columns`: whole files of ITCH as Arrow tables, and back
- `itch_trades`: the trades in a day of ITCH
- `ticker_itch`: fairtape's own trades as ITCH, for the edge
- `framing`: messages with their length before them, as files and datagrams have them
- `moldudp64`: the packets of MoldUDP64
- `arbiter`: several feeds of one session become one sequence
- `soupbintcp`: the packets of SoupBinTCP, out of a stream of bytes
- `ouch`: order entry of OUCH 4.2, which SoupBinTCP carries
- `fix`: messages of FIX 4.4 out of a stream of bytes; `fix_dictionary`, `fix_time`: its numbers, reasons and timestamps
- `fix_fields`: how messages of FIX are described; `fix_admin`, `fix_messages`: those of the session, and of order entry
- `dbn`: trades as DBN, where `databento-dbn` is installed
- `trade_tables`: trades as Arrow, which is what Parquet is written from
"""
