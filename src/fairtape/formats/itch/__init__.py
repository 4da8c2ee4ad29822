"""Nasdaq TotalView-ITCH 5.0: messages, Arrow columns, trades, and the ticker in ITCH form. Pure."""
