"""The reformation server (X_R). Pure.

server            leadership through the store, and the coordinators of all loops
followed_stores   which formation store the sites follow
lost_store        where the order goes on when the store has lost formations
leadership        the claims of a server, and how long it may lead
plausibility      which reports a leader believes
primary_loop      the coordinator of the primary loop: watches, reforms, and changes formations
reformation       what follows from the reports of the members after a failure
roll              which incarnations and journals a formation counts on, and the most that a site has reported
exclusion         how long a member that fails again and again has to wait
planned_change    the next formation when nothing has failed
pace              how fast the token passes, from how many releases are late
secondary_loops   the coordinator of a secondary loop
"""
