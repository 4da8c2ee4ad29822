"""The edge on sockets and journals: publisher, retransmit server, replay archive, subscriber."""
