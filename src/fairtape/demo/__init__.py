"""A whole world on one machine: nine sites, six trading floors, real sockets, the weather of the real distances."""
