"""Symbols, fixed-point prices, trades and a generator of realistic flow. Pure; chance is passed in."""
