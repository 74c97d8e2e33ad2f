"""primusctl: a client of the HTTP API that imports nothing before it is needed."""
