"""The edge on sockets and files: the publisher of a site, its retransmit server, and a customer.

The machines are in `fairtape.edge.protocol`. Numbers at the edge are a function of the order, so everything is computed
from a site's journal and from the stripe plans.

- `settings`: the section `[edge]` of a deployment
- `stripe_plans`: the plans of a deployment as files, and the marks by which formations name them
- `stripe_numbering`: the numbers of all stripes computed from a journal; the position of a publisher, in a checkpoint
  file and recovered from the journal
- `publisher`: the remulticaster in the process of a site
- `replay_archive`: everything that a site released, from its journal, with snapshots
- `retransmit_server`: repairs by datagram and replays by stream
- `subscriber`: a customer on multicast sockets
"""
