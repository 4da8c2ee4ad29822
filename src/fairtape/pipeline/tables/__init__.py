"""Tables of the pipeline: ingestion, transforms from DataFrame to DataFrame, and the jobs that run them."""
