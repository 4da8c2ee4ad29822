"""What all machines share. Pure.

machine         the contract between a machine and its driver
deadlines       the earliest of many deadlines
effects         what a machine may ask of its driver, and the values that travel with it
entries         the canonical encoding of the order: journal entries
spans           iteration over the blocks and messages of one entry
formation_log   requests to the store of formations, and its responses
instants        integer nanoseconds
timing          the intervals of a loop, and named profiles
cities          nine cities and the round trips between them
link_faults     loss, delay and duplication of a link, and injected randomness
state_table     the interpreter of state tables
errors          errors that are reported to users, and which extra installs a missing package
addresses       HOST:PORT as text
json_objects    JSON objects with checked fields
toml_table      strict reading of TOML
percentiles     percentiles by rank
token_bucket    a rate with a limited burst
svg             SVG as text
"""
