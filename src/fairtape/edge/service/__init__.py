"""The edge on real sockets: a site's outlet, the retransmit server beside it, and a customer.

The machines are in `fairtape.edge.protocol`; here they meet files and sockets. Numbers at the edge are a function of
the order, so all of it is worked out from a site's journal and from the stripe plans.

- `settings`: the section `[edge]` of a deployment
- `plan_store`: the plans of a deployment, as files; what a formation calls them
- `numbering`: the numbers of all stripes, worked out from what a journal holds
- `positions`: where an outlet was, in a file beside the journal; `recovery`: where it is, and never a guess
- `station`: the outlet in the process of a site
- `archive`: everything that a site released, by session and number, out of its journal
- `server`: re-requests and replays; `connections`: the streams of its customers
- `ear`: a customer
"""
