"""The released sequence as values: records, column batches, decoding, serialization, sales and ticker."""
