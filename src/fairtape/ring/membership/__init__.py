"""Formations: who is in a loop, and how one formation follows another. Pure.

formation           one numbered formation: members, token order, schedule
formation_history   which formation a token belongs to
layout              the encoding of a formation
reconfiguration     bypass, insert, retire, exchange, reorder, retime: from one formation to the next
topology            the loops that the operator wants, and the rules for failures
hierarchy           how many sites need how many loops, and where the loops meet
secondary_loop      the token of a secondary loop
"""
