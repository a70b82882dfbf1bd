"""Raw data in, a dataset version out: decoded once, into shards that all later steps share."""
