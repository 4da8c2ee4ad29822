"""Datagrams ⇄ values. Pure; keys are passed in. PROTOCOL.md defines the layouts.

frames       header, source blocks, and the control datagrams of the ring
membership   control datagrams between sites, reformation servers and the operator, and of catching up
blocks       block bodies: packed messages, and fragments of long ones
seals        AEAD of source blocks, authenticators and marks of control datagrams, replay windows
"""
