"""Datagrams ⇄ values: frames, blocks of messages, seals and authenticators. Pure; keys are passed in."""
