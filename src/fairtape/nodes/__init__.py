"""The papers' roles, composed from the machines of the ring. Pure.

source                  S_P: sends messages until they are acknowledged
source_group            many sources behind one transport
receiver                R_P, R_S: one site of a loop
membership_tables       the membership of a site as two tables
membership              runs them, and answers what a receiver may do
journal_position        where a journal ends, and whether an entry continues it
source_replies          progress and holes, sent to sources
site                    a receiver that reports to reformation servers, catches up, and joins loops
catchup                 reading another site's journal, and serving one's own
congestion_window       how fast a site catches up
punctuality             whether a site has time for its tokens, and one notice when it has not
clock_bound             the error bound of a site's clock
message_authentication  tags and verifies the control datagrams of a node
coordinator             X_R: the reformation server
"""
