"""The receiver side of the ring. Pure.

receive_buffer    the blocks of every source that this site holds; limits are enforced by refusing blocks
ordering          acknowledgments, in parts and in any order, become the sequence, token by token
token             when to acknowledge, and what: by the clock (TRMP) or by events (RMP)
ack_timeout       which acknowledgment is overdue
ack_lateness      how late acknowledgments come, and so how long the first request waits
recovery          one run of a recovery table per token; combines their requests
recovery_tables   Figures 2 and 3 as tables, for fairtape.core.state_table
repair            the response to a request, and NACK reduction
resilience        what the received acknowledgments prove about other sites
release           the conditions of a commit, and the mark of late releases
tracing           records of how every token arrived, for planning; no behaviour depends on them
"""
