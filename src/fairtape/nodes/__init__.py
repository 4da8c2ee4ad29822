"""The papers' roles, composed from the machines of the ring. Pure.

source                    S_P: sends messages until they are acknowledged
source_group              many sources behind one transport
receiver                  R_P: a site of one formation
reconfigurable_receiver   a receiver that changes from formation to formation
site                      a reconfigurable receiver that reports to reformation servers, catches up, and joins loops
catchup                   reading another site's journal, and serving one's own
congestion_window         how fast a site catches up
punctuality               whether a site has time for its tokens, and one notice when it has not
clock_bound               the error bound of a site's clock
message_authentication    tags and verifies the control datagrams of a node
coordinator               X_R: the reformation server
"""
